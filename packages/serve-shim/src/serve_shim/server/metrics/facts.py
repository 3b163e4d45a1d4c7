"""Owns metrics that are read where they live when somebody asks: start-up times, selections."""

import resource
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ir_passes.programs.report import CacheStatus, CompileReport
from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.server.selections import executed_selections
from serve_shim.settings.tree import CacheConfig

_STARTUP = (Phase.INIT, Phase.RANKS, Phase.LOAD, Phase.COMPILE, Phase.CAPTURE, Phase.WARMUP)


class Facts(Collector):
    """Collects what `read` returns at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        return self._read()

    def describe(self) -> Iterable[Metric]:
        """Nothing: reading at registration would be too early."""
        return ()


def register_facts(registry: CollectorRegistry, prefix: str, status: StartupStatus) -> None:
    """Adds what is known without an engine: phases of the start, selections, the process's costs.

    Scrapes are answered on the event loop's thread, so its own clock is the loop's.
    """
    registry.register(Facts(lambda: [startup_phases(prefix, status)]))
    registry.register(Facts(lambda: [implementations(prefix)]))
    registry.register(Facts(lambda: [event_loop_seconds(prefix), page_faults(prefix)]))


def startup_phases(prefix: str, status: StartupStatus) -> Metric:
    """Seconds of each start-up phase that was entered."""
    family = GaugeMetricFamily(
        f"{prefix}startup_phase_seconds", "Seconds spent in a phase of the start.", labels=["phase"]
    )
    for phase, seconds in status.report().items():
        if phase in _STARTUP:
            family.add_metric([phase.value], seconds)
    return family


def late_compilations(prefix: str, num_compilations: int) -> Metric:
    """Compilations that torch started after the server was ready: more than 0 is a defect."""
    name = f"{prefix}compile_after_ready"
    family = CounterMetricFamily(name, "Compilations after ready; each one delays requests.")
    family.add_metric([], num_compilations)
    return family


def implementations(prefix: str) -> Metric:
    """1 for each implementation that has been executed at least once."""
    family = GaugeMetricFamily(
        f"{prefix}ir_impl_info", "Implementations that have run.", labels=["op", "provider"]
    )
    for op, provider in sorted({(row.op, row.provider) for row in executed_selections()}):
        family.add_metric([op, provider], 1)
    return family


def compile_cache(
    prefix: str, report: CompileReport | None, *, is_directory_trusted: bool
) -> Iterable[Metric]:
    """What the compile cache did for the model, and whether its directory alone is trusted."""
    if report is not None:
        family = GaugeMetricFamily(
            f"{prefix}compile_cache_outcome",
            "1 for what the compile cache did at the start.",
            labels=["status"],
        )
        for status in CacheStatus:
            family.add_metric(
                [status.value.replace(" ", "_")], float(status is report.cache.status)
            )
        yield family
    family = GaugeMetricFamily(
        f"{prefix}compile_cache_trusts_directory",
        "1 if compiled code is run without a key that vouches for it.",
    )
    family.add_metric((), float(is_directory_trusted))
    yield family


def event_loop_seconds(prefix: str) -> Metric:
    """What the calling thread, which runs the event loop, has used of a processor."""
    family = CounterMetricFamily(
        f"{prefix}event_loop_cpu_seconds", "Processor time of the thread that serves HTTP."
    )
    family.add_metric((), time.thread_time())
    return family


def page_faults(prefix: str) -> Metric:
    """Pages that the kernel had to provide; steady work should need none."""
    family = CounterMetricFamily(
        f"{prefix}minor_page_faults", "Pages that were mapped without reading a file."
    )
    family.add_metric((), resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return family


def cache_config(prefix: str, model_name: str, cache: CacheConfig, stats: EngineStats) -> Metric:
    """The shape of the KV cache, as labels of a 1."""
    labels = {
        "model_name": model_name,
        "block_size": str(cache.block_size),
        "num_blocks": str(stats.num_blocks),
    }
    family = GaugeMetricFamily(
        f"{prefix}cache_config_info", "Shape of the KV cache.", labels=list(labels)
    )
    family.add_metric(list(labels.values()), 1)
    return family
