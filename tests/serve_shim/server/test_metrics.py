"""Metrics as Prometheus reads them: names that dashboards know, values that add up."""

import asyncio
from collections.abc import Callable, Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ir_passes.programs.report import CacheOutcome, CacheStatus, CompileReport
from serve_shim.engine.stats_sink import RequestStats
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.engine.step_clock import StepPhase
from serve_shim.server.metrics.buckets import token_counts
from serve_shim.server.metrics.facts import compile_cache
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client
from .fake_engine import PHASE_S, FakeEngine

COUNTERS = [
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "admission_rejections",
    "event_loop_cpu_seconds",
    "minor_page_faults",
    "compile_after_ready",
]
GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "startup_phase_seconds",
    "compile_cache_trusts_directory",
    "ir_impl_info",
]
HISTOGRAMS = [
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "engine_step_phase_seconds",
]


def scrape(client: Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").body.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def value(samples: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str) -> float:
    """The one sample of a name."""
    [only] = samples[name].values()
    return only


def types(text: str) -> dict[str, str]:
    lines: Iterable[list[str]] = (line.split() for line in text.splitlines())
    return {line[2]: line[3] for line in lines if line[:2] == ["#", "TYPE"]}


def test_the_content_type_is_prometheus_text(client: Client) -> None:
    reply = client.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")


def test_names_and_kinds_are_those_of_the_dashboards(client: Client) -> None:
    kinds = types(client.get("/metrics").body.decode())
    for name in COUNTERS:
        assert kinds[f"vllm:{name}_total"] == "counter"
    for name in GAUGES:
        assert kinds[f"vllm:{name}"] == "gauge"
    for name in HISTOGRAMS:
        assert kinds[f"vllm:{name}"] == "histogram"
    assert kinds["http_requests_total"] == "counter"
    assert kinds["http_request_duration_seconds"] == "histogram"
    known = len(COUNTERS) + len(GAUGES) + len(HISTOGRAMS) + 2
    assert len(kinds) == known


def test_there_are_no_created_series(client: Client) -> None:
    client.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert b"_created" not in client.get("/metrics").body


def test_a_completion_is_counted(client: Client) -> None:
    client.post("/v1/completions", {"prompt": "hi", "max_tokens": 4, "n": 2})
    samples = scrape(client)
    assert value(samples, "vllm:prompt_tokens_total") == 3
    assert value(samples, "vllm:time_to_first_token_seconds_count") == 1
    assert value(samples, "vllm:inter_token_latency_seconds_count") == 3
    assert value(samples, "vllm:request_generation_tokens_sum") == 8
    assert value(samples, "vllm:request_params_max_tokens_sum") == 4
    assert value(samples, "vllm:request_params_n_sum") == 2
    assert value(samples, "vllm:kv_cache_usage_perc") == 0.25
    labels = (("finished_reason", "length"), ("model_name", "fake"))
    assert samples["vllm:request_success_total"] == {labels: 1.0}


def test_the_phases_of_steps_add_up(client: Client) -> None:
    client.post("/v1/completions", {"prompt": "hi", "max_tokens": 4})
    samples = scrape(client)
    sums = samples["vllm:engine_step_phase_seconds_sum"]
    by_phase = {dict(labels)["phase"]: seconds for labels, seconds in sums.items()}
    assert list(by_phase) == [phase.name.lower() for phase in StepPhase]
    assert list(by_phase.values()) == pytest.approx([4 * seconds for seconds in PHASE_S])
    assert set(samples["vllm:engine_step_phase_seconds_count"].values()) == {4.0}


def test_the_costs_of_the_process_never_fall(client: Client) -> None:
    first, second = scrape(client), scrape(client)
    for name in ("vllm:event_loop_cpu_seconds_total", "vllm:minor_page_faults_total"):
        assert 0.0 < value(first, name) <= value(second, name)
    assert value(first, "vllm:event_loop_cpu_seconds_total") < value(
        second, "vllm:event_loop_cpu_seconds_total"
    )


def test_the_running_gauge_is_back_at_zero_once_a_client_has_left(
    client: Client, engine: FakeEngine
) -> None:
    async def look() -> list[bytes]:
        engine.gate.clear()
        call = client.start("POST", "/v1/completions", {"prompt": "x", "stream": True})
        await asyncio.sleep(0.02)
        busy = await client.start("GET", "/metrics").reply()
        await call.leave()
        idle = await client.start("GET", "/metrics").reply()
        return [busy.body, idle.body]

    line = 'vllm:num_requests_running{model_name="fake"} '
    busy, idle = client.run(look())
    assert f"{line}1.0".encode() in busy
    assert f"{line}0.0".encode() in idle


def test_a_request_without_a_token_has_no_token_times(client: Client, service: Service) -> None:
    service.metrics.sink.on_request_finished(
        RequestStats("abort", 3, 0, 0.5, 0.0, 0.0, None, 0.5, 1, None)
    )
    samples = scrape(client)
    labels = (("finished_reason", "abort"), ("model_name", "fake"))
    assert samples["vllm:request_success_total"] == {labels: 1.0}
    assert value(samples, "vllm:request_decode_time_seconds_count") == 0
    assert value(samples, "vllm:request_params_max_tokens_count") == 0


def test_http_requests_are_counted_by_route_not_by_what_was_written(client: Client) -> None:
    client.get("/health")
    client.get("/v1/models/fake")
    client.get("/some/<path>")
    client.request("BREW", "/health", None)
    client.post("/v1/completions", {"prompt": ""})
    requests = scrape(client)["http_requests_total"]
    keys = {tuple(dict(labels).values()) for labels in requests}
    assert ("/health", "GET", "200") in keys
    assert ("/v1/models/{model}", "GET", "200") in keys
    assert ("unknown", "GET", "404") in keys
    assert ("/health", "other", "405") in keys
    assert not any("path" in label for key in keys for label in key)


def test_refusals_are_counted_by_reason(client: Client, engine: FakeEngine) -> None:
    engine.capacity = 0
    client.post("/v1/completions", {"prompt": "x"})
    refusals = scrape(client)["vllm:admission_rejections_total"]
    assert refusals == {(("reason", "server_overloaded"),): 1.0}


def test_metrics_are_there_while_the_server_starts(
    service: Service, make_client: Callable[..., Client]
) -> None:
    client = make_client(service)
    service.status.advance(Phase.LOAD)
    client.post("/v1/completions", {"prompt": "x"})
    samples = scrape(client)
    phases = {dict(labels)["phase"] for labels in samples["vllm:startup_phase_seconds"]}
    assert phases == {"init", "load"}
    assert samples["vllm:admission_rejections_total"] == {(("reason", "starting"),): 1.0}


def test_ready_is_no_start_phase(client: Client) -> None:
    phases = {dict(k)["phase"] for k in scrape(client)["vllm:startup_phase_seconds"]}
    assert phases == {"init"}


@pytest.mark.parametrize("prefix", ["", "shim_"])
def test_the_prefix_is_a_setting(make_client: Callable[..., Client], prefix: str) -> None:
    service = Service(Settings(model="fake", metrics_prefix=prefix), StartupStatus())
    service.attach(FakeEngine(sink=service.metrics.sink))
    text = make_client(service).get("/metrics").body.decode()
    assert f"\n{prefix}num_requests_running{{" in text
    assert "vllm:" not in text


def test_the_model_label_is_the_served_name(make_client: Callable[..., Client]) -> None:
    service = Service(Settings(model="fake", served_model_name=("mine",)), StartupStatus())
    service.attach(FakeEngine())
    assert 'model_name="mine"' in make_client(service).get("/metrics").body.decode()


def test_what_the_compile_cache_did_is_the_one_status_that_is_1() -> None:
    report = CompileReport("inductor", (), (), (), {}, CacheOutcome(CacheStatus.NOT_STORED))
    outcome, trust = compile_cache("p:", report, is_directory_trusted=True)
    assert {sample.labels["status"]: sample.value for sample in outcome.samples} == {
        "off": 0.0,
        "hit": 0.0,
        "miss": 0.0,
        "not_stored": 1.0,
    }
    assert [sample.value for sample in trust.samples] == [1.0]


def test_without_a_compiled_model_the_cache_has_no_outcome() -> None:
    families = compile_cache("p:", None, is_directory_trusted=False)
    assert [(family.name, family.samples[0].value) for family in families] == [
        ("p:compile_cache_trusts_directory", 0.0)
    ]


def test_token_buckets_end_at_the_context() -> None:
    assert token_counts(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert token_counts(1) == (1,)
