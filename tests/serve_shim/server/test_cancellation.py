"""A client that leaves frees its sequence at once, whatever it was waiting for."""

import asyncio
import random
from typing import Any

import pytest

from serve_shim.server.service import Service

from .client import DEADLINE_S, Client
from .fake_engine import BOS, FakeEngine, completion_text

LONG = {"prompt": "hi", "max_tokens": 200}


async def until(condition: Any) -> None:
    """Waits for something that must become true soon."""
    async with asyncio.timeout(1.0):
        while not condition():
            await asyncio.sleep(0.001)


def assert_idle(service: Service, engine: FakeEngine) -> None:
    assert engine.running == set()
    assert len(service.in_flight) == 0
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [task for task in others if "bounded" not in repr(task)] == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"]])
def test_leaving_aborts_in_the_engine(
    client: Client,
    service: Service,
    engine: FakeEngine,
    stream: bool,
    queued: bool,
    prompt: Any,
) -> None:
    async def leave_midway() -> None:
        engine.step_s = 0.005
        if queued:
            engine.gate.clear()
        call = client.start("POST", "/v1/completions", {**LONG, "prompt": prompt, "stream": stream})
        await until(lambda: len(engine.seen) > 0)
        if stream and not queued:
            for _ in range(3):
                await call.next_message()
        else:
            await asyncio.sleep(0.02)
        assert engine.running
        await asyncio.wait_for(call.leave(), 1.0)
        await until(lambda: not engine.running)
        assert_idle(service, engine)

    client.run(leave_midway())
    assert len(engine.aborted) == (1 if prompt == "hi" else 2)


def test_many_clients_that_leave_at_random_leave_nothing_behind(
    client: Client, service: Service, engine: FakeEngine
) -> None:
    rng = random.Random(0)

    async def one(index: int) -> None:
        body = {**LONG, "stream": index % 2 == 0, "n": 1 + index % 3}
        call = client.start("POST", "/v1/completions", body)
        await asyncio.sleep(rng.random() * 0.05)
        await call.leave()

    async def all_of_them() -> None:
        engine.step_s = 0.0005
        for _ in range(20):
            await asyncio.gather(*(one(i) for i in range(50)))
        await until(lambda: not engine.running)
        assert_idle(service, engine)
        engine.step_s = 0

    client.run(all_of_them())
    reply = client.post("/v1/completions", {"prompt": "hi", "max_tokens": 5})
    assert reply.json()["choices"][0]["text"] == completion_text([BOS, *b"hi"], 0, 5)


def test_leaving_before_the_body_has_arrived_is_no_error(client: Client) -> None:
    async def leave_early() -> list[Any]:
        call = client.start("POST", "/v1/completions", b'{"prompt"', scope={"x": 1})
        await asyncio.wait_for(asyncio.shield(call.task), DEADLINE_S)
        return call.sent

    assert client.run(leave_early()) == []


def test_a_cut_off_tells_plain_clients_and_streams(
    client: Client, service: Service, engine: FakeEngine
) -> None:
    from serve_shim.errors import UnavailableError

    async def cut() -> None:
        engine.step_s = 0.005
        stream = client.start("POST", "/v1/completions", {**LONG, "stream": True})
        plain = client.start("POST", "/v1/completions", LONG)
        await stream.next_message()
        await stream.next_message()
        await until(lambda: len(service.in_flight) == 2)
        service.in_flight.cut_off(UnavailableError("bye", code="draining"))
        streamed, answered = await stream.reply(), await plain.reply()
        assert streamed.events()[-1]["error"]["code"] == "draining"
        assert answered.status == 503
        assert answered.error["code"] == "draining"
        assert await service.in_flight.wait_idle(1.0)
        assert_idle(service, engine)

    client.run(cut())


def test_wait_idle_gives_up_in_time(client: Client, service: Service, engine: FakeEngine) -> None:
    async def wait() -> None:
        engine.gate.clear()
        call = client.start("POST", "/v1/completions", LONG)
        await until(lambda: len(service.in_flight) == 1)
        assert not await service.in_flight.wait_idle(0.01)
        await call.leave()
        assert await service.in_flight.wait_idle(0.01)

    client.run(wait())
