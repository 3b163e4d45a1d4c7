"""Owns the metric families of the engine and the labels they carry; refuses to fill them."""

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.stats_sink import Outcome
from serve_shim.engine.step_clock import StepPhase
from serve_shim.server.metrics import buckets
from serve_shim.server.metrics.facts import Facts
from serve_shim.server.metrics.tally import Distribution, Total

_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_requests_running", "Sequences that run.", lambda stats: stats.num_running),
    ("num_requests_waiting", "Sequences that wait.", lambda stats: stats.num_waiting),
    ("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", lambda stats: stats.kv_usage),
)


class EngineFamilies:
    """The engine's numbers, labelled `model_name`, and their export to `registry`."""

    def __init__(
        self, registry: CollectorRegistry, prefix: str, model_name: str, max_model_len: int
    ) -> None:
        self._registry = registry
        self._prefix = prefix
        self._model_name = model_name
        self._exports: list[Callable[[], Metric]] = []
        self._make_totals()
        self._make_latencies()
        self._make_sizes(buckets.token_counts(max_model_len))
        self._make_step_phases()
        registry.register(Facts(lambda: [export() for export in self._exports]))

    def count_outcome(self, reason: Outcome) -> None:
        """One request that ended by `reason`."""
        self._success[reason].add(1)

    def follow(self, stats: Callable[[], EngineStats]) -> None:
        """Adds the gauges of load, read at each scrape: an abort is followed by no step."""
        self._registry.register(Facts(lambda: self._gauges(stats())))

    def _make_totals(self) -> None:
        self.prompt_tokens = self._total("prompt_tokens", "Prompt tokens computed.")
        self.generation_tokens = self._total("generation_tokens", "Tokens generated.")
        self.preemptions = self._total("num_preemptions", "Sequences pre-empted.")
        self.prefix_queries = self._total("prefix_cache_queries", "Tokens looked up in the cache.")
        self.prefix_hits = self._total("prefix_cache_hits", "Tokens found in the cache.")
        self._success: dict[Outcome, Total] = {each: Total() for each in get_args(Outcome)}
        self._exports.append(self._export_success)

    def _make_latencies(self) -> None:
        request = buckets.REQUEST_S
        self.ttft = self._distribution(
            "time_to_first_token_seconds", "Arrival to first token.", buckets.TTFT_S
        )
        self.itl = self._distribution(
            "inter_token_latency_seconds", "Token to token.", buckets.TOKEN_S
        )
        self.tpot = self._distribution(
            "request_time_per_output_token_seconds", "Mean of a request.", buckets.TOKEN_S
        )
        self.e2e = self._distribution("e2e_request_latency_seconds", "Arrival to end.", request)
        self.queue = self._distribution(
            "request_queue_time_seconds", "Arrival to admission.", request
        )
        self.prefill = self._distribution(
            "request_prefill_time_seconds", "Admission to first token.", request
        )
        self.decode = self._distribution(
            "request_decode_time_seconds", "First to last token.", request
        )
        self.inference = self._distribution(
            "request_inference_time_seconds", "Admission to end.", request
        )

    def _make_sizes(self, counts: Sequence[float]) -> None:
        self.request_prompt = self._distribution("request_prompt_tokens", "Prompt tokens.", counts)
        self.request_generation = self._distribution(
            "request_generation_tokens", "Generated tokens.", counts
        )
        self.request_longest = self._distribution(
            "request_max_num_generation_tokens", "Most tokens of one completion, at most.", counts
        )
        self.params_n = self._distribution(
            "request_params_n", "`n` of a request.", buckets.COMPLETIONS
        )
        self.params_max = self._distribution("request_params_max_tokens", "`max_tokens`.", counts)
        self.step_tokens = self._distribution(
            "iteration_tokens_total", "Tokens in a step.", buckets.STEP_TOKENS
        )

    def _make_step_phases(self) -> None:
        self.step_phases = [Distribution(buckets.STEP_PHASE_S) for _ in StepPhase]
        self._exports.append(self._export_step_phases)

    def _total(self, name: str, words: str) -> Total:
        total = Total()

        def export() -> Metric:
            family = CounterMetricFamily(self._prefix + name, words, labels=("model_name",))
            family.add_metric((self._model_name,), total.value)
            return family

        self._exports.append(export)
        return total

    def _distribution(self, name: str, words: str, bounds: Sequence[float]) -> Distribution:
        values = Distribution(bounds)

        def export() -> Metric:
            family = HistogramMetricFamily(self._prefix + name, words, labels=("model_name",))
            family.add_metric((self._model_name,), values.buckets(), values.sum)
            return family

        self._exports.append(export)
        return values

    def _export_success(self) -> Metric:
        family = CounterMetricFamily(
            f"{self._prefix}request_success",
            "Requests that ended.",
            labels=("model_name", "finished_reason"),
        )
        for reason, total in self._success.items():
            if total.value:
                family.add_metric((self._model_name, reason), total.value)
        return family

    def _export_step_phases(self) -> Metric:
        family = HistogramMetricFamily(
            f"{self._prefix}engine_step_phase_seconds",
            "Wall time of the engine's thread in a phase of a step.",
            labels=("model_name", "phase"),
        )
        for phase, values in zip(StepPhase, self.step_phases, strict=True):
            labels = (self._model_name, phase.name.lower())
            family.add_metric(labels, values.buckets(), values.sum)
        return family

    def _gauges(self, stats: EngineStats) -> Iterable[Metric]:
        for name, words, read in _GAUGES:
            family = GaugeMetricFamily(self._prefix + name, words, labels=("model_name",))
            family.add_metric((self._model_name,), read(stats))
            yield family
