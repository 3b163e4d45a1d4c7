"""The access log: one line for a request that went wrong, none for the others."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from .client import Client
from .conftest import recorded
from .fake_engine import FakeEngine


@pytest.fixture
def access_log() -> Iterator[list[logging.LogRecord]]:
    with recorded("serve_shim.access") as records:
        yield records


def test_a_request_that_is_served_is_not_logged(
    client: Client, access_log: list[logging.LogRecord]
) -> None:
    assert client.get("/livez").status == 200
    assert access_log == []


def test_a_wrong_request_is_logged_at_debug_without_what_it_wrote(
    client: Client, access_log: list[logging.LogRecord]
) -> None:
    client.post("/v1/nowhere?secret", {"prompt": "secret"}, headers={"x-request-id": "abc"})
    [record] = access_log
    assert record.levelno == logging.DEBUG
    method, route, status, seconds, request_id = record.getMessage().split()
    assert (method, route, status, request_id) == ("POST", "unknown", "404", "abc")
    assert float(seconds.removesuffix("s")) >= 0


def test_a_failure_is_logged_at_warning_and_a_refusal_is_not(
    client: Client, engine: FakeEngine, access_log: list[logging.LogRecord]
) -> None:
    engine.capacity = 0
    assert client.post("/v1/completions", {"prompt": "x"}).status == 503
    engine.death = "boom"
    assert client.post("/v1/completions", {"prompt": "x"}).status == 500
    refused, failed = access_log
    assert (refused.levelno, failed.levelno) == (logging.DEBUG, logging.WARNING)
    assert "POST /v1/completions 500" in failed.getMessage()


def test_a_client_that_leaves_is_logged_as_499(
    client: Client, engine: FakeEngine, access_log: list[logging.LogRecord]
) -> None:
    async def leave() -> None:
        engine.gate.clear()
        call = client.start("POST", "/v1/completions", {"prompt": "x"})
        while not engine.running:
            await asyncio.sleep(0)
        await call.leave()

    client.run(leave())
    [record] = access_log
    assert record.levelno == logging.DEBUG
    assert " 499 " in record.getMessage()
