"""The load line: numbers per second while busy, silence while idle."""

import asyncio
import logging
from contextlib import suppress

from serve_shim.engine.stats_sink import StepStats
from serve_shim.server.metrics.sink import Totals
from serve_shim.server.service import Service
from serve_shim.server.throughput_log import describe, log_throughput

from .fake_engine import PHASE_S, FakeEngine


def test_the_line_has_rates_and_load(service: Service, engine: FakeEngine) -> None:
    engine.running.add("r")
    line = describe(service, Totals(10, 20, 0, 0), Totals(110, 70, 40, 10), 10.0)
    assert line == (
        "prompt 10.0 tok/s, generation 5.0 tok/s, running 1, waiting 0, KV cache 25.0 %, "
        "prefix cache hits 25.0 %"
    )


def test_busy_is_logged_and_idle_is_not(
    service: Service, engine: FakeEngine, server_log: list[logging.LogRecord]
) -> None:
    async def watch() -> None:
        task = asyncio.create_task(log_throughput(service, 0.01))
        await asyncio.sleep(0.03)
        assert server_log == []
        service.metrics.sink.on_step(StepStats(1, 0, 0.1, 5, 1, 0, 0, 0, PHASE_S))
        async with asyncio.timeout(5):
            while len(server_log) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.03)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(watch())
    assert [record.levelname for record in server_log] == ["INFO", "DEBUG"]
