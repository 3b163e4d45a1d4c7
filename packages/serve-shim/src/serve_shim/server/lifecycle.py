"""Owns the life of a server between bind and exit: start, serve, drain, or fail with the engine.

It decides what ends the server and how requests in flight are told; sockets are not its business.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from serve_shim.engine.protocol import Engine
from serve_shim.engine.stats_sink import StatsSink
from serve_shim.engine.status import StartupStatus
from serve_shim.errors import EngineDeadError, UnavailableError
from serve_shim.server.compiled import compiled_report
from serve_shim.server.loader import Loader
from serve_shim.server.selections import selections_report
from serve_shim.server.service import Service
from serve_shim.server.startup_report import startup_report
from serve_shim.server.throughput_log import log_throughput
from serve_shim.settings.tree import Settings
from serve_shim.startup import resume_collection

Build = Callable[[Settings, StartupStatus, StatsSink], Engine]

_HEALTH_INTERVAL_S = 1.0
_FLUSH_S = 2.0  # for the last words to clients once their generation is cut off
_ENGINE_SHUTDOWN_S = 6.0
_log = logging.getLogger(__name__)


async def live(service: Service, build: Build, stop: "asyncio.Future[int]") -> int:
    """Builds the engine and serves until `stop` has a signal's number; returns the exit code.

    0 after an orderly end, 128 + signal if it came before the server was ready. Raises what
    `build` raises, and EngineDeadError when the engine ends by itself.
    """
    settings, status, sink = service.settings, service.status, service.metrics.sink
    loader = Loader(lambda: build(settings, status, sink))
    loader.start()
    await asyncio.wait((loader.result, stop), return_when=asyncio.FIRST_COMPLETED)
    if not loader.result.done():
        service.drain()
        _log.info("Stopped before the server was ready.")
        return 128 + stop.result()
    engine = loader.result.result()
    service.attach(engine)
    resume_collection()
    service.metrics.compilations.start()
    _log.info("%s", startup_report(status, engine))
    if engine.compile_report is not None:
        _log.info("%s", compiled_report(engine.compile_report))
    _log.info("%s", selections_report())
    try:
        return await _serve(service, engine, stop)
    finally:
        service.metrics.compilations.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.shutdown(), _ENGINE_SHUTDOWN_S)


async def _serve(service: Service, engine: Engine, stop: "asyncio.Future[int]") -> int:
    death = asyncio.create_task(_watch(engine))
    throughput = asyncio.create_task(log_throughput(service))
    drained = asyncio.create_task(_drain_after(stop, service))
    try:
        await asyncio.wait((death, drained), return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            await _fail(service, death.result())
        return drained.result()
    finally:
        for task in (death, throughput, drained):
            task.cancel()


async def _drain_after(stop: "asyncio.Future[int]", service: Service) -> int:
    await asyncio.wait((stop,))
    await drain(service)
    return 0


async def drain(service: Service) -> None:
    """Refuses new requests, waits for those in flight as long as settings allow, cuts off the rest.

    Balancers see `/readyz` fail for `drain_grace` seconds at least.
    """
    service.drain()
    settings, in_flight = service.settings, service.in_flight
    _log.info("Draining: %d requests in flight.", len(in_flight))
    await asyncio.sleep(settings.drain_grace)
    if await in_flight.wait_idle(settings.shutdown_timeout):
        return
    _log.warning("Cutting off %d requests after %g s.", len(in_flight), settings.shutdown_timeout)
    in_flight.cut_off(UnavailableError("The server has shut down.", code="draining"))
    await in_flight.wait_idle(_FLUSH_S)


async def _watch(engine: Engine) -> str:
    while True:
        is_healthy, reason = engine.is_healthy()
        if not is_healthy:
            return reason
        await asyncio.sleep(_HEALTH_INTERVAL_S)


async def _fail(service: Service, reason: str) -> None:
    error = EngineDeadError(f"the engine has stopped: {reason}")
    service.fail(reason)
    service.in_flight.cut_off(error)
    await service.in_flight.wait_idle(_FLUSH_S)
    raise error
