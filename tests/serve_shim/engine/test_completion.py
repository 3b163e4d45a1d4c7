import pytest
from toy_engine import EOS, ToyTokenizer, toy_parts

from serve_shim.engine.completion import accept_token
from serve_shim.engine.output import CompletionDelta, TokenLogprob, TokenLogprobs
from serve_shim.sampling.params import SamplingParams

A, B, C = 2, 3, 4


def accept(token_ids: list[int], **params: object) -> list[CompletionDelta]:
    """Feed tokens until the completion ends."""
    parts = toy_parts(tokenizer=ToyTokenizer())
    sampling = SamplingParams(**{"max_tokens": 9, **params})  # pyright: ignore[reportArgumentType]
    (sequence,) = parts.factory.make("r", [A], sampling).sequences
    deltas: list[CompletionDelta] = []
    for token_id in token_ids:
        deltas.append(accept_token(sequence, token_id, None))
        if deltas[-1].finish_reason:
            break
    assert sequence.num_tokens == 1 + len(sequence.output_ids)
    return deltas


def ending(deltas: list[CompletionDelta]) -> tuple[str, object, object, int]:
    last = deltas[-1]
    return "".join(d.text for d in deltas), last.finish_reason, last.stop_reason, len(deltas)


@pytest.mark.parametrize(
    ("token_ids", "params", "expected"),
    [
        ([A, B, C], {"max_tokens": 2}, ("AB", "length", None, 2)),
        ([A, EOS, C], {}, ("A", "stop", None, 2)),
        ([A, EOS, C], {"ignore_eos": True, "max_tokens": 3}, ("AC", "length", None, 3)),
        ([A, B, C], {"stop_token_ids": (B,)}, ("A", "stop", B, 2)),
        (
            [A, B],
            {"stop_token_ids": (B,), "include_stop_str_in_output": True},
            ("AB", "stop", B, 2),
        ),
        # An end-of-sequence token that was named is a stop token like any other.
        ([A, EOS], {"stop_token_ids": (EOS,)}, ("A", "stop", EOS, 2)),
        ([A, EOS], {"stop_token_ids": (EOS,), "ignore_eos": True}, ("A", "stop", EOS, 2)),
        ([A, B, C], {"stop": ("BC",)}, ("A", "stop", "BC", 3)),
        (
            [A, B, C],
            {"stop": ("BC",), "include_stop_str_in_output": True},
            ("ABC", "stop", "BC", 3),
        ),
        # A stop string that completes with the last allowed token is still the reason.
        ([A, B], {"stop": ("B",), "max_tokens": 2}, ("A", "stop", "B", 2)),
        # Text held back for a stop string is shown when generation ends otherwise.
        ([A, B], {"stop": ("BC",), "max_tokens": 2}, ("AB", "length", None, 2)),
        ([B, EOS], {"stop": ("BC",)}, ("B", "stop", None, 2)),
        ([60, 61], {"max_tokens": 2}, ("\ufffd", "length", None, 2)),
        ([B, B, B], {"stop": ("B",), "min_tokens": 3}, ("BB", "stop", "B", 3)),
        ([A, B, B], {"stop_token_ids": (B,), "min_tokens": 3}, ("AB", "stop", B, 3)),
    ],
)
def test_completion_ends_as_asked(
    token_ids: list[int], params: dict[str, object], expected: tuple[object, ...]
) -> None:
    assert ending(accept(token_ids, **params)) == expected


def test_unfinished_completion_has_no_reason() -> None:
    assert ending(accept([A, B])) == ("AB", None, None, 2)


def test_request_for_no_tokens_gains_none() -> None:
    (delta,) = accept([A], max_tokens=0)
    assert delta == CompletionDelta(0, "", (), None, "length")


def test_logprobs_stay_with_their_token_while_its_text_is_held() -> None:
    parts = toy_parts(tokenizer=ToyTokenizer())
    (sequence,) = parts.factory.make("r", [A], SamplingParams(stop="BCD", logprobs=0)).sequences
    entries = [TokenLogprobs(t, -1.0, (TokenLogprob(t, -1.0, 1),)) for t in (B, C, A)]
    deltas = [accept_token(sequence, entry.token_id, entry) for entry in entries]
    assert [d.text for d in deltas] == ["", "", "BCA"]
    assert [d.token_ids for d in deltas] == [(B,), (C,), (A,)]
    assert [d.logprobs for d in deltas] == [(entry,) for entry in entries]
