"""Owns what the engine reports about its work; refuses to keep it (the server's metrics do)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Outcome = Literal["stop", "length", "abort", "error"]


class StepStats(NamedTuple):
    """One step of the engine; the counts are of this step, the gauges hold after it.

    `kv_usage` is 0..1. `prefix_queries` and `prefix_hits` count prompt tokens looked up in and
    found in the prefix cache by the sequences admitted in this step. `phase_seconds` has an entry
    for each `StepPhase`; delivery is that of the step before, since this one's is yet to come.
    """

    num_running: int
    num_waiting: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    phase_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RequestStats:
    """The life of one request, all times in seconds.

    `generation_tokens` counts all `n` completions. `prefill_s` is from admission to the first
    token, `decode_s` from the first token to the last, `ttft_s` None when there was no token.
    """

    finish_reason: Outcome
    prompt_tokens: int
    generation_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float | None
    e2e_s: float
    n: int
    max_tokens: int | None


class StatsSink(Protocol):
    """Receives statistics on the engine's thread; must return quickly and must not raise."""

    def on_step(self, stats: StepStats) -> None:
        """Take note of one step."""
        ...

    def on_request_finished(self, stats: RequestStats) -> None:
        """Take note of a request that finished, failed or was aborted."""
        ...

    def on_tokens(self, first: bool, seconds: float) -> None:
        """Take note of a token: seconds since arrival if `first`, else since the previous one."""
        ...


class NullSink:
    """Drops everything; what an engine without metrics uses."""

    def on_step(self, stats: StepStats) -> None:
        """Drop it."""

    def on_request_finished(self, stats: RequestStats) -> None:
        """Drop it."""

    def on_tokens(self, first: bool, seconds: float) -> None:
        """Drop it."""
