"""Owns metrics that are read where they live when somebody asks: start-up times, selections."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
    """Adds `startup_phase_seconds{phase}` and `ir_impl_info{op,provider}`."""
    registry.register(Facts(lambda: [startup_phases(prefix, status)]))
    registry.register(Facts(lambda: [implementations(prefix)]))


def startup_phases(prefix: str, status: StartupStatus) -> Metric:
    """Seconds of each start-up phase that was entered."""
    family = GaugeMetricFamily(
        f"{prefix}startup_phase_seconds", "Seconds spent in a phase of the start.", labels=["phase"]
    )
    for phase, seconds in status.report().items():
        if phase in _STARTUP:
            family.add_metric([phase.value], seconds)
    return family


def implementations(prefix: str) -> Metric:
    """1 for each implementation that has been executed at least once."""
    family = GaugeMetricFamily(
        f"{prefix}ir_impl_info", "Implementations that have run.", labels=["op", "provider"]
    )
    for op, provider in sorted({(row.op, row.provider) for row in executed_selections()}):
        family.add_metric([op, provider], 1)
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
