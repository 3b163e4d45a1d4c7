"""Owns the one registry of a server and its text; the engine's part begins with a model."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from serve_shim.compilation.watch import CompileWatch
from serve_shim.engine.protocol import Engine
from serve_shim.engine.status import StartupStatus
from serve_shim.server.metrics.engine_families import EngineFamilies
from serve_shim.server.metrics.facts import (
    Facts,
    cache_config,
    compile_cache,
    late_compilations,
    register_facts,
)
from serve_shim.server.metrics.http import HttpFamilies
from serve_shim.server.metrics.sink import MetricsSink
from serve_shim.settings.tree import CacheConfig


class ServerMetrics:
    """All metrics of one server; `sink` is for the engine, `http` for the middleware.

    `compilations` counts what torch compiles after ready in this process; ranks count their own.
    """

    def __init__(self, prefix: str, status: StartupStatus) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._prefix = prefix
        self.sink = MetricsSink()
        self.http = HttpFamilies(self._registry, prefix)
        self.compilations = CompileWatch()
        self._count_on_ranks: Callable[[], int] = lambda: 0
        register_facts(self._registry, prefix, status)
        self._registry.register(Facts(lambda: [late_compilations(prefix, self._compilations())]))

    def bind(
        self,
        engine: Engine,
        model_name: str,
        cache: CacheConfig,
        *,
        is_directory_trusted: bool = False,
    ) -> None:
        """Registers the engine's families under the name that clients use.

        `is_directory_trusted` tells whether the compile cache runs code that no key vouches for.
        """
        families = EngineFamilies(self._registry, self._prefix, model_name, engine.max_model_len)
        families.follow(engine.stats)
        self._count_on_ranks = lambda: engine.stats().num_rank_compilations
        self.sink.bind(families)
        self._registry.register(
            Facts(lambda: [cache_config(self._prefix, model_name, cache, engine.stats())])
        )
        outcome = compile_cache(
            self._prefix, engine.compile_report, is_directory_trusted=is_directory_trusted
        )
        families_of_cache = tuple(outcome)
        self._registry.register(Facts(lambda: families_of_cache))

    def text(self) -> bytes:
        """Everything, in the Prometheus text format, without `_created` series."""
        return generate_latest(_WithoutCreated(self._registry))

    def _compilations(self) -> int:
        return self.compilations.num_compilations + self._count_on_ranks()


class _WithoutCreated(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return map(_strip, self._registry.collect())


def _strip(family: Metric) -> Metric:
    stripped = Metric(family.name, family.documentation, family.type, family.unit)
    stripped.samples = [s for s in family.samples if not s.name.endswith("_created")]
    return stripped
