"""Gathering the deltas of a request, and counting its tokens."""

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs
from serve_shim.server.wire.choices import Gathered
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
