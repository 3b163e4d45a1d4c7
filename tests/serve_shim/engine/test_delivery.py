from toy_engine import toy_parts

from serve_shim.engine.delivery import build_delivery
from serve_shim.engine.output import CompletionDelta
from serve_shim.sampling.params import SamplingParams


def test_prompt_logprobs_are_delivered_once() -> None:
    request = toy_parts().factory.make("mine", [5], SamplingParams(prompt_logprobs=0))
    request.prompt_logprobs = [None]
    delta = CompletionDelta(0, "x", (7,))
    first = build_delivery(request, [delta]).output
    second = build_delivery(request, [delta]).output
    assert first is not None
    assert second is not None
    assert (first.request_id, first.prompt_token_ids, first.deltas) == ("mine", (5,), (delta,))
    assert (first.prompt_logprobs, second.prompt_logprobs) == ((None,), None)


def test_output_is_finished_with_the_last_completion() -> None:
    request = toy_parts().factory.make("r", [5], SamplingParams(n=2))
    outputs = []
    for unfinished in (1, 0):
        request.num_unfinished = unfinished
        outputs.append(build_delivery(request, []).output)
    assert [output.finished for output in outputs if output] == [False, True]
