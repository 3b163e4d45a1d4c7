"""Owns the metric families of the engine and the model label they carry; refuses to fill them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from serve_shim.engine.protocol import EngineStats
from serve_shim.server.metrics import buckets

M = TypeVar("M", Counter, Gauge, Histogram)


class EngineFamilies:
    """One child of each family, labelled `model_name`; registered when a model is known."""

    def __init__(
        self, registry: CollectorRegistry, prefix: str, model_name: str, max_model_len: int
    ) -> None:
        self._registry = registry
        self._prefix = prefix
        self._model_name = model_name
        counts = buckets.token_counts(max_model_len)
        self._make_totals()
        self._make_latencies()
        self._make_sizes(counts)
        self._success = self._family(
            Counter, "request_success", "Requests that ended.", "finished_reason"
        )

    def count_outcome(self, reason: str) -> None:
        """One request that ended by `reason`: stop, length, abort or error."""
        self._success.labels(self._model_name, reason).inc()

    def follow(self, stats: Callable[[], EngineStats]) -> None:
        """Adds the gauges of load, read at each scrape: an abort is followed by no step."""
        running = self._gauge("num_requests_running", "Sequences that run.")
        running.set_function(lambda: stats().num_running)
        waiting = self._gauge("num_requests_waiting", "Sequences that wait.")
        waiting.set_function(lambda: stats().num_waiting)
        kv_usage = self._gauge("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.")
        kv_usage.set_function(lambda: stats().kv_usage)

    def _make_totals(self) -> None:
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.preemptions = self._counter("num_preemptions", "Sequences pre-empted.")
        self.prefix_queries = self._counter(
            "prefix_cache_queries", "Tokens looked up in the cache."
        )
        self.prefix_hits = self._counter("prefix_cache_hits", "Tokens found in the cache.")

    def _make_latencies(self) -> None:
        request = buckets.REQUEST_S
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", buckets.TTFT_S
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds", "Token to token.", buckets.TOKEN_S
        )
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean of a request.", buckets.TOKEN_S
        )
        self.e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", request)
        self.queue = self._histogram("request_queue_time_seconds", "Arrival to admission.", request)
        self.prefill = self._histogram(
            "request_prefill_time_seconds", "Admission to first token.", request
        )
        self.decode = self._histogram(
            "request_decode_time_seconds", "First to last token.", request
        )
        self.inference = self._histogram(
            "request_inference_time_seconds", "Admission to end.", request
        )

    def _make_sizes(self, counts: Sequence[float]) -> None:
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens.", counts)
        self.request_generation = self._histogram(
            "request_generation_tokens", "Generated tokens.", counts
        )
        self.request_longest = self._histogram(
            "request_max_num_generation_tokens", "Most tokens of one completion, at most.", counts
        )
        self.params_n = self._histogram(
            "request_params_n", "`n` of a request.", buckets.COMPLETIONS
        )
        self.params_max = self._histogram("request_params_max_tokens", "`max_tokens`.", counts)
        self.step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens in a step.", buckets.STEP_TOKENS
        )

    def _counter(self, name: str, words: str) -> Counter:
        return self._family(Counter, name, words).labels(self._model_name)

    def _gauge(self, name: str, words: str) -> Gauge:
        return self._family(Gauge, name, words).labels(self._model_name)

    def _histogram(self, name: str, words: str, bounds: Sequence[float]) -> Histogram:
        family = Histogram(
            self._prefix + name, words, ("model_name",), registry=self._registry, buckets=bounds
        )
        return family.labels(self._model_name)

    def _family(self, kind: Callable[..., M], name: str, words: str, *labels: str) -> M:
        return kind(self._prefix + name, words, ("model_name", *labels), registry=self._registry)
