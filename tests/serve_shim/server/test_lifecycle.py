"""The life of a server without sockets: start, drain, failure, and what each tells clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serve_shim.engine.status import StartupStatus
from serve_shim.errors import EngineDeadError, ModelLoadError
from serve_shim.server.app import build_app
from serve_shim.server.lifecycle import live
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client
from .fake_engine import FakeEngine

LONG = {"prompt": "hi", "max_tokens": 200, "stream": True}


class Life:
    """One run of `live`, whose stop the test decides."""

    def __init__(self, build: Callable[..., Any], **settings: Any) -> None:
        self.service = Service(Settings(model="fake", **settings), StartupStatus())
        self.client = Client(build_app(self.service))
        self.stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(live(self.service, build, self.stop))

    async def ready(self) -> FakeEngine:
        async with asyncio.timeout(5):
            while not self.service.readiness()[0]:
                await asyncio.sleep(0.001)
        assert isinstance(self.service.engine, FakeEngine)
        return self.service.engine


def slow_engine(*_: object) -> FakeEngine:
    return FakeEngine(step_s=0.01)


def run(work: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


def test_an_idle_server_ends_at_once_with_0() -> None:
    async def scenario() -> None:
        life = Life(slow_engine)
        engine = await life.ready()
        life.stop.set_result(15)
        assert await life.task == 0
        assert engine.is_shut_down

    run(scenario())


def test_a_drain_lets_what_runs_finish() -> None:
    async def scenario() -> None:
        life = Life(slow_engine)
        engine = await life.ready()
        call = life.client.start("POST", "/v1/completions", {**LONG, "max_tokens": 20})
        await call.next_message()
        life.stop.set_result(15)
        await asyncio.sleep(0)
        assert (await call.reply()).events()[-1]["choices"][0]["finish_reason"] == "length"
        assert await life.task == 0
        assert engine.aborted == []

    run(scenario())


def test_a_drain_that_is_over_cuts_off_and_aborts() -> None:
    async def scenario() -> None:
        life = Life(slow_engine, shutdown_timeout=0.05)
        engine = await life.ready()
        call = life.client.start("POST", "/v1/completions", LONG)
        await call.next_message()
        life.stop.set_result(15)
        assert (await call.reply()).events()[-1]["error"]["code"] == "draining"
        assert await life.task == 0
        assert len(engine.aborted) == 1

    run(scenario())


def test_a_grace_keeps_the_process_for_the_balancer() -> None:
    async def scenario() -> None:
        life = Life(slow_engine, drain_grace=0.1)
        await life.ready()
        life.stop.set_result(15)
        await asyncio.sleep(0.02)
        assert (await life.client.start("GET", "/readyz").reply()).status == 503
        assert not life.task.done()
        assert await life.task == 0

    run(scenario())


def test_a_stop_before_ready_does_not_wait_for_the_load() -> None:
    async def scenario() -> None:
        import threading

        release = threading.Event()

        def never(*_: object) -> FakeEngine:
            release.wait(10)
            return FakeEngine()

        life = Life(never)
        await asyncio.sleep(0.01)
        life.stop.set_result(2)
        assert await life.task == 130
        release.set()

    run(scenario())


@pytest.mark.parametrize("error", [ModelLoadError("no weights"), ZeroDivisionError("a defect")])
def test_an_error_of_the_load_comes_out(error: Exception) -> None:
    async def scenario() -> None:
        def fails(*_: object) -> FakeEngine:
            raise error

        with pytest.raises(type(error), match=str(error)):
            await Life(fails).task

    run(scenario())


def test_a_dead_engine_fails_everything_and_comes_out() -> None:
    async def scenario() -> None:
        life = Life(slow_engine)
        engine = await life.ready()
        stream = life.client.start("POST", "/v1/completions", LONG)
        await stream.next_message()
        engine.gate.clear()
        plain = life.client.start("POST", "/v1/completions", {**LONG, "stream": False})
        await asyncio.sleep(0.02)
        engine.death = "no step for 60 s"
        with pytest.raises(EngineDeadError, match="no step for 60 s"):
            await life.task
        assert (await stream.reply()).events()[-1]["error"]["code"] == "engine_dead"
        assert (await plain.reply()).status == 500
        late = await life.client.start("POST", "/v1/completions", LONG).reply()
        assert (late.status, late.error["code"]) == (503, "engine_dead")

    run(scenario())


@pytest.mark.parametrize("drain_grace", [0, 30])
def test_an_engine_that_dies_while_draining_comes_out(drain_grace: float) -> None:
    async def scenario() -> None:
        life = Life(slow_engine, drain_grace=drain_grace)
        engine = await life.ready()
        engine.gate.clear()
        stuck = life.client.start("POST", "/v1/completions", {**LONG, "stream": False})
        await asyncio.sleep(0.02)
        life.stop.set_result(15)
        await asyncio.sleep(0.02)
        engine.death = "no step for 60 s"
        with pytest.raises(EngineDeadError, match="no step for 60 s"):
            await life.task
        assert (await stuck.reply()).status == 500
        assert engine.is_shut_down

    run(scenario())
