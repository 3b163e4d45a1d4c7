"""The process: socket first, signals, exit codes. Each test owns a real server process."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_shim.errors import AddressInUseError, SettingsError
from serve_shim.server import run
from serve_shim.server.run import first_to_end
from serve_shim.settings.tree import Settings

from .server_process import ServerProcess

STREAM = {"prompt": "hi", "max_tokens": 100, "stream": True}


def must_not_build(*_: object) -> Any:
    raise AssertionError("the engine was built")


def events(lines: Iterator[str]) -> list[Any]:
    """The payloads of a stream; `[DONE]` stays as it is."""
    data = [line.removeprefix("data: ") for line in lines if line]
    return [json.loads(line) if line != "[DONE]" else line for line in data]


def test_a_taken_port_ends_the_start_before_the_engine_is_built() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=str(port)) as caught:
            run(Settings(port=port), build=must_not_build)
    assert caught.value.exit_code == 2


def test_an_unreadable_key_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        run(Settings(port=0, api_key_file=tmp_path / "missing"), build=must_not_build)


def test_start_serve_and_drain() -> None:
    with ServerProcess(load_s=1.0, step_s=0.01) as server, server.client() as client:
        starting = client.get("/health")
        assert (starting.status_code, starting.json()["phase"]) == (503, "load")
        assert client.get("/livez").status_code == 200
        refused = client.post("/v1/completions", json={"prompt": "hi"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "starting"
        assert int(refused.headers["retry-after"]) >= 1

        server.wait_ready(client)
        with client.stream("POST", "/v1/completions", json=STREAM) as running:
            lines = running.iter_lines()
            assert next(lines).startswith("data: {")
            server.signal(signal.SIGTERM)
            server.wait_for(lambda: client.get("/readyz").status_code == 503)
            late = client.post("/v1/completions", json={"prompt": "hi"})
            assert late.status_code == 503
            assert late.json()["error"]["code"] == "draining"
            assert late.headers["connection"] == "close"
            rest = events(lines)
        assert rest[-1] == "[DONE]"
        assert rest[-2]["choices"][0]["finish_reason"] == "length"
        assert server.exit_code() == 0
    assert "Available routes are:" in server.log
    assert "POST /v1/completions" in server.log
    assert "Start-up report:" in server.log
    assert "Traceback" not in server.log


def test_a_drain_that_takes_too_long_cuts_streams_off() -> None:
    settings = {"shutdown_timeout": 0.3}
    with ServerProcess(step_s=0.5, settings=settings) as server, server.client() as client:
        server.wait_ready(client)
        with client.stream("POST", "/v1/completions", json=STREAM) as running:
            lines = running.iter_lines()
            next(lines)
            server.signal(signal.SIGINT)
            rest = events(lines)
        assert rest[-1] == "[DONE]"
        assert rest[-2]["error"]["code"] == "draining"
        assert server.exit_code(within_s=10) == 0


def test_a_second_signal_ends_the_process_at_once() -> None:
    with ServerProcess(step_s=1.0) as server, server.client() as client:
        server.wait_ready(client)
        with client.stream("POST", "/v1/completions", json=STREAM) as running:
            lines = running.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            server.wait_for(lambda: client.get("/readyz").status_code == 503)
            server.signal(signal.SIGTERM)
            assert server.exit_code(within_s=2) == 128 + signal.SIGTERM
            with pytest.raises(httpx.HTTPError):
                list(lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_ends_the_start(number: int) -> None:
    with ServerProcess(load_s=600) as server, server.client() as client:
        assert client.get("/health").json()["phase"] == "load"
        server.signal(number)
        assert server.exit_code(within_s=10) == 128 + number
    assert "Traceback" not in server.log


def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    path = tmp_path / "shim.sock"
    with ServerProcess(settings={"uds": str(path)}) as server:
        assert server.url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://shim", transport=transport, timeout=30) as client:
            server.wait_ready(client)
            reply = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
            assert reply.status_code == 200
        server.signal(signal.SIGTERM)
        assert server.exit_code(within_s=10) == 0


def test_a_load_that_fails_ends_with_its_code_and_words() -> None:
    with ServerProcess(load_error="`x`: no such checkpoint") as server:
        assert server.exit_code() == 3
    assert "serve-shim: error: `x`: no such checkpoint" in server.log
    assert "Traceback" not in server.log


def test_the_death_of_the_engine_ends_the_process_with_5() -> None:
    with ServerProcess(step_s=0.05) as server, server.client() as client:
        server.wait_ready(client)
        with client.stream("POST", "/v1/completions", json=STREAM) as running:
            lines = running.iter_lines()
            next(lines)
            killed = client.post("/v1/completions", json={"prompt": "hi", "seed": 666})
            assert killed.status_code in (500, 503)
            assert killed.json()["error"]["code"] == "engine_dead"
            rest = events(lines)
        assert rest[-1] == "[DONE]"
        assert rest[-2]["error"]["code"] == "engine_dead"
        assert server.exit_code(within_s=10) == 5
    assert "killed by a test" in server.log


@pytest.mark.parametrize("error", [None, OSError("no more sockets")])
def test_a_web_server_that_ends_by_itself_ends_the_rest(error: Exception | None) -> None:
    async def serve() -> None:
        if error is not None:
            raise error

    async def scenario() -> None:
        living = asyncio.create_task(asyncio.sleep(60, 0))
        serving = asyncio.create_task(serve())
        with pytest.raises(OSError if error else RuntimeError, match=r"sockets|by itself"):
            await asyncio.wait_for(first_to_end(living, serving), 20)
        await asyncio.wait((living,), timeout=20)
        assert living.cancelled()

    asyncio.run(scenario())
