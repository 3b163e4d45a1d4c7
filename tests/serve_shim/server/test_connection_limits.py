"""Connections that say nothing, or too slowly, or are too many."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from serve_shim.errors import OverloadedError
from serve_shim.server.http_protocol import bounded_protocol

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Stream]]


@asynccontextmanager
async def listening(
    on_refusal: Callable[[Exception], None] = lambda _: None, **limits: Any
) -> AsyncGenerator[Connect]:
    """A server whose only answer is `ok`, and a way to connect to it."""
    protocol = bounded_protocol(1000, on_refusal=on_refusal, **limits)
    config = uvicorn.Config(PlainTextResponse("ok"), http=protocol, ws="none", log_config=None)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    address = server.sockets[0].getsockname()
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Stream:
        reader, writer = await asyncio.open_connection(*address)
        writers.append(writer)
        return reader, writer

    async with server:
        yield connect
        for writer in writers:
            writer.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0)


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, 20)

    asyncio.run(bounded())


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.05) as connect:
            reader, _ = await connect()
            assert await reader.read() == b""

    run(scenario())


def test_headers_that_trickle_are_closed_in_time() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.2) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\n")
            closed = asyncio.create_task(reader.read())
            while not closed.done():
                writer.write(b"x: y\r\n")
                await asyncio.wait((closed,), timeout=0.03)
            assert closed.result() == b""

    run(scenario())


def test_the_clock_stops_with_the_headers_and_starts_with_the_next() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.1) as connect:
            reader, writer = await connect()
            for _ in range(2):
                writer.write(REQUEST)
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.15)
            writer.write(b"GET / HTTP")
            assert await reader.read() == b""

    run(scenario())


def test_a_connection_too_many_is_told_so() -> None:
    async def scenario() -> None:
        told: list[Exception] = []
        async with listening(told.append, max_connections=2) as connect:
            kept = [await connect() for _ in range(2)]
            reader, _ = await connect()
            refused = await reader.read()
            assert refused.startswith(b"HTTP/1.1 503")
            assert b'"code":"server_overloaded"' in refused
            assert b"\r\nretry-after: 1\r\n" in refused
            assert [type(error) for error in told] == [OverloadedError]
            kept[0][1].write(REQUEST)
            assert (await kept[0][0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")

    run(scenario())


def test_an_empty_line_after_an_answer_does_not_keep_a_connection_open() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.1) as connect:
            reader, writer = await connect()
            writer.write(REQUEST)
            await reader.readuntil(b"ok")
            writer.write(b"\r\n")
            assert await reader.read() == b""

    run(scenario())


def test_a_body_that_goes_on_after_its_answer_is_closed_in_time() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.2) as connect:
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
            await reader.readuntil(b"ok")
            closed = asyncio.create_task(reader.read())
            while not closed.done():
                writer.write(b"x")
                await asyncio.wait((closed,), timeout=0.03)
            assert closed.result() == b""

    run(scenario())


def test_a_request_after_an_empty_line_is_served() -> None:
    async def scenario() -> None:
        async with listening(header_timeout_s=0.1) as connect:
            reader, writer = await connect()
            for _ in range(2):
                writer.write(REQUEST + b"\r\n")
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")

    run(scenario())
