"""Bodies over HTTP: size, type, time and broken JSON, each answered in the one shape."""

import asyncio

import pytest

from serve_shim.server.body import BodyLimits
from serve_shim.server.service import Service

from .client import Client
from .fake_engine import FakeEngine
from .test_strict_json import nested

GOOD = {"prompt": "hi", "max_tokens": 3}


@pytest.fixture(autouse=True)
def _small_bodies(service: Service) -> None:
    service.body_limits = BodyLimits(max_bytes=4096, timeout_s=0.05)


def test_a_body_over_the_limit_by_its_declared_length_is_413(client: Client) -> None:
    reply = client.post("/v1/completions", {"prompt": "x" * 5000})
    assert reply.status == 413
    assert reply.error["code"] == "body_too_large"
    assert "4096 bytes" in reply.error["message"]
    assert reply.headers["connection"] == "close"


def test_a_body_over_the_limit_in_chunks_is_413(client: Client, engine: FakeEngine) -> None:
    reply = client.post(
        "/v1/completions",
        {"prompt": "x" * 5000},
        chunks=20,
        headers={"content-length": "10", "transfer-encoding": "chunked"},
    )
    assert reply.status == 413
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers["connection"] == "close"
    assert client.post("/v1/completions", GOOD).status == 200


def test_a_body_in_chunks_within_the_limit_is_read(client: Client) -> None:
    assert client.post("/v1/completions", GOOD, chunks=7).status == 200


def test_an_absurd_declared_length_is_413(client: Client) -> None:
    reply = client.post("/v1/completions", GOOD, headers={"content-length": "9" * 5000})
    assert reply.status == 413


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
def test_another_media_type_is_415(client: Client, content_type: str) -> None:
    reply = client.post("/v1/completions", GOOD, headers={"content-type": content_type})
    assert reply.status == 415
    assert "application/json" in reply.error["message"]


def test_a_compressed_body_is_415(client: Client) -> None:
    reply = client.post("/v1/completions", GOOD, headers={"content-encoding": "gzip"})
    assert reply.status == 415


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "Application/JSON"])
def test_spellings_of_json_are_accepted(client: Client, content_type: str) -> None:
    reply = client.post("/v1/completions", GOOD, headers={"content-type": content_type})
    assert reply.status == 200


def test_a_body_that_does_not_arrive_is_408(client: Client) -> None:
    async def never_ends() -> tuple[int, str]:
        async def receive() -> dict[str, object]:
            await asyncio.sleep(3600)
            return {}

        sent: list[dict[str, object]] = []

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await client.app(scope, receive, send)
        return int(str(sent[0]["status"])), str(sent[1]["body"])

    status, body = client.run(never_ends())
    assert status == 408
    assert "request_timeout" in body


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e400}',
        b'{"prompt": "x", "seed": ' + b"1" * 3000 + b"}",
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud83d"}',
        b'\xef\xbb\xbf{"prompt": "x"}',
        nested(2000),
        b"[]",
        b"",
        b"not json",
    ],
    ids=lambda data: repr(data[:24]),
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_broken_json_is_400_and_the_next_request_is_right(
    client: Client, path: str, data: bytes
) -> None:
    reply = client.post(path, data, headers={"content-type": "application/json"})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert client.post("/v1/completions", GOOD).status == 200


def test_a_body_too_long_for_the_loop_is_parsed_in_a_thread(
    service: Service, client: Client
) -> None:
    service.body_limits = BodyLimits(max_bytes=1 << 20, timeout_s=10)
    reply = client.post("/v1/completions", {"prompt": ["x" * 100_000], "max_tokens": 1})
    assert reply.error["code"] == "context_length_exceeded"
