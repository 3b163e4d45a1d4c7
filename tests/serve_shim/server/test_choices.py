"""Gathering the deltas of a request, and counting its tokens."""

from typing import Any

import pytest

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs
from serve_shim.server.json_response import to_json
from serve_shim.server.wire.chat import ChatRequest
from serve_shim.server.wire.chat_choices import ChatChoices
from serve_shim.server.wire.choices import Gathered
from serve_shim.server.wire.completion import CompletionRequest
from serve_shim.server.wire.completion_choices import CompletionChoices
from serve_shim.server.wire.prompt import Prompt
from serve_shim.server.wire.token_text import TokenText
from serve_shim.server.wire.usage import Usage

LOGPROB = TokenLogprobs(1, -0.5, ())


def output(*deltas: CompletionDelta, cached: int = 0) -> RequestOutput:
    return RequestOutput("r", (1, 2), deltas, num_cached_tokens=cached)


def test_deltas_are_joined_in_the_order_of_choices() -> None:
    gathered = Gathered()
    gathered.add(1, output(CompletionDelta(0, "c", (3,))))
    gathered.add(0, output(CompletionDelta(1, "b", (2,)), CompletionDelta(0, "a", (1,))))
    gathered.add(0, output(CompletionDelta(0, "A", (4, 5), None, "stop", "A")))
    joined = [(prompt, whole.index, whole.text) for prompt, whole in gathered.completions()]
    assert joined == [(0, 0, "aA"), (0, 1, "b"), (1, 0, "c")]
    first = next(iter(gathered.completions()))[1]
    assert (first.token_ids, first.finish_reason, first.stop_reason) == ((1, 4, 5), "stop", "A")
    assert first.logprobs is None


def test_logprobs_are_joined_and_may_be_empty() -> None:
    gathered = Gathered()
    gathered.add(0, output(CompletionDelta(0, "a", (1,), (LOGPROB,))))
    gathered.add(0, output(CompletionDelta(0, "", (), ())))
    [(_, whole)] = gathered.completions()
    assert whole.logprobs == (LOGPROB,)
    nothing = Gathered()
    nothing.add(0, output(CompletionDelta(0, "", (), (), "length")))
    [(_, whole)] = nothing.completions()
    assert whole.logprobs == ()


def test_usage_counts_each_prompt_once_and_every_completion() -> None:
    usage = Usage([2, 3])
    usage.note(0, output(CompletionDelta(0, "a", (1,)), CompletionDelta(1, "b", (1, 2)), cached=2))
    usage.note(0, output(CompletionDelta(0, "a", (1,)), cached=2))
    usage.note(1, output(CompletionDelta(0, "", ()), cached=1))
    assert usage.to_wire() == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


AWKWARD = ("", " a", 'say "hi"\\\n\t', "\u2028\x00\x7f", "é😀", "\ud800")


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("end", [(None, None), ("length", None), ("stop", 'x"'), ("stop", 7)])
def test_a_plain_piece_is_the_json_of_its_choice(text: str, end: tuple[Any, Any]) -> None:
    delta = CompletionDelta(1, text, (5,), None, *end)
    rest = {"logprobs": None, "finish_reason": end[0], "stop_reason": end[1]}
    prompts = [Prompt((1, 2)), Prompt((3,))]
    completion = CompletionChoices(
        CompletionRequest.parse({"prompt": ["a", "b"], "n": 2}), prompts, TokenText(None)
    )
    assert completion.piece(1, delta) == to_json({"index": 3, "text": text, **rest})
    chat = ChatChoices(
        ChatRequest.parse({"messages": [{"role": "user", "content": "a"}]}),
        prompts[:1],
        TokenText(None),
    )
    first = {"role": "assistant", "content": text}
    assert chat.piece(0, delta) == to_json({"index": 1, "delta": first, **rest})
    assert chat.piece(0, delta) == to_json({"index": 1, "delta": {"content": text}, **rest})
