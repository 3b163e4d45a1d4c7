"""Owns what a step hands to the consumers of requests; refuses to know how it reaches them."""

from typing import NamedTuple

from serve_shim.engine.output import CompletionDelta, RequestOutput
from serve_shim.engine.request import Request
from serve_shim.errors import GenerationError


class Delivery(NamedTuple):
    """An output of a request, or the error that ended it; exactly one of the two is set."""

    request: Request
    output: RequestOutput | None
    error: GenerationError | None = None


def build_delivery(request: Request, deltas: list[CompletionDelta]) -> Delivery:
    """Wrap a step's deltas of one request; the first carries the prompt's logprobs."""
    prompt_logprobs = None
    if not request.is_delivered:
        request.is_delivered = True
        if request.prompt_logprobs is not None:
            prompt_logprobs = tuple(request.prompt_logprobs)
    output = RequestOutput(
        request.request_id,
        request.prompt_ids,
        tuple(deltas),
        prompt_logprobs,
        request.num_cached_tokens,
        request.num_unfinished == 0,
    )
    return Delivery(request, output)
