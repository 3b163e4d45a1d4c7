from toy_engine import toy_parts

from serve_shim.engine.request import Request
from serve_shim.engine.request_log import RequestLog
from serve_shim.engine.stats_sink import RequestStats, StepStats
from serve_shim.sampling.params import SamplingParams


class Recorder:
    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []
        self.tokens: list[tuple[bool, float]] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def on_tokens(self, first: bool, seconds: float) -> None:
        self.tokens.append((first, seconds))


def make(n: int = 1) -> tuple[Recorder, RequestLog, Request]:
    recorder = Recorder()
    request = toy_parts().factory.make("r", [1, 2, 3], SamplingParams(n=n, max_tokens=9))
    request.arrived_at = 100.0
    return recorder, RequestLog(recorder), request


def test_times_of_a_request_follow_its_life() -> None:
    recorder, log, request = make()
    sequence = request.sequences[0]
    log.admitted(sequence, 2, 101.0)
    for now in (103.0, 104.0, 107.0):
        sequence.output_ids.append(5)
        log.got_token(sequence, now)
    log.closed(request, "length", 107.5)
    assert recorder.tokens == [(True, 3.0), (False, 1.0), (False, 3.0)]
    assert recorder.requests == [RequestStats("length", 3, 3, 1.0, 2.0, 4.0, 3.0, 7.5, 1, 9)]
    assert request.num_cached_tokens == 2


def test_admission_after_a_preemption_does_not_count_again() -> None:
    _, log, request = make()
    log.admitted(request.sequences[0], 0, 101.0)
    log.admitted(request.sequences[0], 8, 105.0)
    assert (request.admitted_at, request.num_cached_tokens) == (101.0, 0)


def test_siblings_first_tokens_are_neither_first_nor_gaps() -> None:
    recorder, log, request = make(n=2)
    for now in (102.0, 104.0):
        for sequence in request.sequences:
            log.got_token(sequence, now)
    assert recorder.tokens == [(True, 2.0), (False, 2.0), (False, 2.0)]


def test_request_that_never_ran_has_only_queued() -> None:
    recorder, log, request = make()
    log.closed(request, "abort", 104.0)
    (stats,) = recorder.requests
    assert (stats.finish_reason, stats.queue_s, stats.prefill_s, stats.e2e_s) == (
        "abort",
        4.0,
        0.0,
        4.0,
    )
    assert stats.ttft_s is None
    assert stats.decode_s == 0.0
