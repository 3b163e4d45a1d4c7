import pytest

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprob, TokenLogprobs
from serve_shim.engine.result import ResultBuilder


def entry(token_id: int, logprob: float) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, (TokenLogprob(token_id, logprob, 1),))


def output(*deltas: CompletionDelta, finished: bool = False) -> RequestOutput:
    return RequestOutput("r", (7, 8), deltas, None, 0, finished)


def test_deltas_become_completions_in_order_of_their_index() -> None:
    builder = ResultBuilder("hi")
    builder.add(output(CompletionDelta(1, "x", (4,)), CompletionDelta(0, "a", (5,))))
    builder.add(output(CompletionDelta(0, "b", (6,), None, "stop", "b")))
    builder.add(output(CompletionDelta(1, "", (), None, "length"), finished=True))
    result = builder.build()
    assert (result.prompt, result.prompt_token_ids) == ("hi", (7, 8))
    assert [(c.index, c.text, c.token_ids) for c in result.outputs] == [
        (0, "ab", (5, 6)),
        (1, "x", (4,)),
    ]
    assert [(c.finish_reason, c.stop_reason) for c in result.outputs] == [
        ("stop", "b"),
        ("length", None),
    ]
    assert result.outputs[0].logprobs is None
    assert result.outputs[0].cumulative_logprob is None


def test_logprobs_are_joined_and_summed() -> None:
    builder = ResultBuilder(None)
    builder.add(output(CompletionDelta(0, "", (1,), (entry(1, -0.5),))))
    builder.add(output(CompletionDelta(0, "", (2,), (entry(2, -0.25),), "length")))
    completion = builder.build().outputs[0]
    assert [e.token_id for e in completion.logprobs or ()] == [1, 2]
    assert completion.cumulative_logprob == -0.75


def test_unfinished_completion_is_no_result() -> None:
    builder = ResultBuilder(None)
    builder.add(output(CompletionDelta(0, "a", (5,))))
    with pytest.raises(ValueError, match="not finished"):
        builder.build()
