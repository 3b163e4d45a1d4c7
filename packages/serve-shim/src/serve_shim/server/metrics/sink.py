"""Owns the totals that the engine reports, as Prometheus families and as plain counts.

Called on the engine's thread. Before a model is bound everything is dropped: warm-up is no traffic.
"""

from dataclasses import dataclass

from serve_shim.engine.stats_sink import RequestStats, StepStats
from serve_shim.server.metrics.engine_families import EngineFamilies


@dataclass(slots=True)
class Totals:
    """Counts since the server became ready, in tokens."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class MetricsSink:
    """The StatsSink of a server."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._families: EngineFamilies | None = None

    def bind(self, families: EngineFamilies) -> None:
        """Counts into `families` from now on."""
        self._families = families

    def on_step(self, stats: StepStats) -> None:
        """One step: token counters."""
        families = self._families
        if families is None:
            return
        self._add(stats)
        families.prompt_tokens.add(stats.prompt_tokens)
        families.generation_tokens.add(stats.generation_tokens)
        families.preemptions.add(stats.num_preemptions)
        families.prefix_queries.add(stats.prefix_queries)
        families.prefix_hits.add(stats.prefix_hits)
        families.step_tokens.observe(stats.prompt_tokens + stats.generation_tokens)
        for phase, seconds in zip(families.step_phases, stats.phase_seconds, strict=True):
            phase.observe(seconds)

    def on_request_finished(self, stats: RequestStats) -> None:
        """One request: its outcome, sizes and times."""
        families = self._families
        if families is None:
            return
        families.count_outcome(stats.finish_reason)
        families.request_prompt.observe(stats.prompt_tokens)
        families.request_generation.observe(stats.generation_tokens)
        families.request_longest.observe(_longest(stats))
        families.params_n.observe(stats.n)
        if stats.max_tokens is not None:
            families.params_max.observe(stats.max_tokens)
        families.e2e.observe(stats.e2e_s)
        families.queue.observe(stats.queue_s)
        if stats.ttft_s is None:
            return
        families.prefill.observe(stats.prefill_s)
        families.decode.observe(stats.decode_s)
        families.inference.observe(stats.prefill_s + stats.decode_s)
        per_completion = stats.generation_tokens / stats.n
        if per_completion > 1:
            families.tpot.observe(stats.decode_s / (per_completion - 1))

    def on_tokens(self, first: bool, seconds: float) -> None:
        """One token: the wait for it."""
        families = self._families
        if families is None:
            return
        (families.ttft if first else families.itl).observe(seconds)

    def _add(self, stats: StepStats) -> None:
        self.totals.prompt_tokens += stats.prompt_tokens
        self.totals.generation_tokens += stats.generation_tokens
        self.totals.prefix_queries += stats.prefix_queries
        self.totals.prefix_hits += stats.prefix_hits


def _longest(stats: RequestStats) -> int:
    if stats.max_tokens is None:
        return stats.generation_tokens
    return min(stats.generation_tokens, stats.max_tokens)
