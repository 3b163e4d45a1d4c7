"""Bytes of HTTP: reads of a decided size in process, and whole exchanges on a real socket."""

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from serve_shim.server.http_protocol import MAX_HEADERS, bounded_protocol

from .server_process import ServerProcess


def exchange(server: ServerProcess, *parts: bytes) -> bytes:
    """Sends bytes and returns what comes until the server closes."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
            while chunk := connection.recv(65536):
                received += chunk
        except (BrokenPipeError, ConnectionResetError):
            pass
        return received


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def read_in_process(*reads: bytes, max_header_bytes: int = 1000, turns: int = 20) -> Wire:
    """What a server that answers `ok` does with bytes that arrive exactly so."""

    async def feed() -> Wire:
        kind = bounded_protocol(max_header_bytes, on_refusal=lambda _: None)
        config = uvicorn.Config(PlainTextResponse("ok"), http=kind, ws="none", log_config=None)
        protocol, wire = kind(config=config, server_state=ServerState(), app_state={}), Wire()
        protocol.connection_made(wire)
        for read in reads:
            if not wire.is_closed:
                protocol.data_received(read)
            for _ in range(turns):
                await asyncio.sleep(0)
        was_closed = wire.is_closed
        protocol.connection_lost(None)
        wire.is_closed = was_closed
        return wire

    return asyncio.run(feed())


def split(response: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON body of one response."""
    head, _, body = response.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


def test_bytes_that_are_no_http_are_400(running_server: ServerProcess) -> None:
    status, headers, body = split(exchange(running_server, b"\x16\x03\x01\x02\x00garbage\r\n\r\n"))
    assert status == 400
    assert headers["connection"] == "close"
    assert body["error"]["code"] == "malformed_http"


@pytest.mark.parametrize("read_size", [100, 900, 10_000])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nx: " + b"a" * 1100 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: " + b"a" * 5000,
        b"GET /" + b"a" * 1100 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"GET /health HTTP/1.1\r\n" + b"".join(b"x%d: %s\r\n" % (i, b"y" * 90) for i in range(20)),
    ],
    ids=["one long", "one unfinished", "request line", "many", "unfinished many"],
)
def test_headers_over_the_limit_are_431(head: bytes, read_size: int) -> None:
    reads = [head[i : i + read_size] for i in range(0, len(head), read_size)]
    wire = read_in_process(*reads)
    status, headers, body = split(wire.written)
    assert status == 431
    assert headers["connection"] == "close"
    assert body["error"]["code"] == "headers_too_large"
    assert wire.is_closed


def test_too_many_headers_are_told_so_over_a_socket(running_server: ServerProcess) -> None:
    head = b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n"
    assert split(exchange(running_server, head))[0] == 431


def test_the_rest_of_a_body_does_not_count_as_headers_of_the_next_request() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n"
    wire = read_in_process(head, b"x" * 5000 + b"GET / HT", b"TP/1.1\r\nhost: x\r\n\r\n")
    assert wire.written.count(b"HTTP/1.1 200") == 2
    assert not wire.is_closed


def test_headers_that_begin_behind_a_body_are_bounded_too() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    wire = read_in_process(head, b"xxxxxGET / HTTP/1.1\r\nx: ", *[b"a" * 600] * 2)
    assert wire.written.count(b"HTTP/1.1 200") == wire.written.count(b"HTTP/1.1 431") == 1


def test_a_refusal_is_not_written_into_an_unfinished_answer() -> None:
    wire = read_in_process(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nno http\r\n\r\n", turns=0)
    assert wire.is_closed
    assert wire.written == b""


def test_headers_just_within_the_limit_pass(running_server: ServerProcess) -> None:
    lines = b"".join(b"x%d: y\r\n" % i for i in range(MAX_HEADERS - 3))
    request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines + b"\r\n"
    assert split(exchange(running_server, request))[0] == 200


def test_headers_are_counted_per_request_of_a_connection(running_server: ServerProcess) -> None:
    one = b"GET /livez HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n"
    last = b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n"
    assert exchange(running_server, one, one, last).count(b"HTTP/1.1 200") == 3


def test_an_upgrade_is_answered_as_plain_http(running_server: ServerProcess) -> None:
    request = (
        b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAA\r\n\r\n"
    )
    assert split(exchange(running_server, request))[0] == 404


def test_an_absolute_target_is_routed_by_its_path(running_server: ServerProcess) -> None:
    request = b"GET http://elsewhere/livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert split(exchange(running_server, request))[0] == 200


def test_a_body_that_is_too_long_is_413_and_closes(running_server: ServerProcess) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    declared = head + b"content-length: 99999999\r\n\r\n{"
    status, headers, body = split(exchange(running_server, declared))
    assert (status, headers["connection"]) == (413, "close")
    assert body["error"]["code"] == "body_too_large"


def test_a_chunked_body_that_is_too_long_is_413_and_closes(running_server: ServerProcess) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    response = exchange(running_server, head, *[chunk] * 10)
    if response:  # a reset can overtake the answer while the client still sends
        status, headers, _ = split(response)
        assert (status, headers["connection"]) == (413, "close")
    with running_server.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert reply.status_code == 200


def test_a_stream_on_the_wire_is_chunked_lf_only_events(running_server: ServerProcess) -> None:
    body = b'{"prompt": "hi", "max_tokens": 3, "stream": true}'
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    head, _, chunks = exchange(running_server, request + body).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    payload, rest = b"", chunks
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        payload, rest = payload + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    assert b"\r" not in payload
    assert payload.count(b"data: ") == 4
    assert payload.endswith(b"data: [DONE]\n\n")
