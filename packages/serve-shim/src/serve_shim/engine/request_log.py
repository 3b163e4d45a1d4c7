"""Owns the times of requests and what the sink hears of them; refuses to keep any total."""

from serve_shim.engine.request import Request, Sequence
from serve_shim.engine.stats_sink import Outcome, RequestStats, StatsSink


class RequestLog:
    """Stamps requests with monotonic seconds and reports to `sink`."""

    def __init__(self, sink: StatsSink) -> None:
        self._sink = sink

    def admitted(self, sequence: Sequence, num_cached: int, now: float) -> None:
        """A sequence runs, for the first time or again after a pre-emption."""
        request = sequence.request
        if request.admitted_at == 0.0:
            request.admitted_at = now
            request.num_cached_tokens = num_cached

    def got_token(self, sequence: Sequence, now: float) -> None:
        """A sequence has a new token."""
        request = sequence.request
        if request.first_token_at == 0.0:
            request.first_token_at = now
            self._sink.on_tokens(True, now - request.arrived_at)
        elif sequence.last_token_at:
            self._sink.on_tokens(False, now - sequence.last_token_at)
        sequence.last_token_at = request.last_token_at = now

    def closed(self, request: Request, outcome: Outcome, now: float) -> None:
        """A request is over."""
        admitted = request.admitted_at or now
        first = request.first_token_at
        self._sink.on_request_finished(
            RequestStats(
                finish_reason=outcome,
                prompt_tokens=len(request.prompt_ids),
                generation_tokens=sum(len(s.output_ids) for s in request.sequences),
                queue_s=admitted - request.arrived_at,
                prefill_s=(first or now) - admitted,
                decode_s=request.last_token_at - first,
                ttft_s=first - request.arrived_at if first else None,
                e2e_s=now - request.arrived_at,
                n=request.params.n,
                max_tokens=request.params.max_tokens,
            )
        )
