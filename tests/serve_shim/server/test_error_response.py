"""One shape for every error: unknown routes, methods, and what nobody expected."""

import logging
from collections.abc import Callable

import pytest

from serve_shim.errors import (
    EngineDeadError,
    GenerationError,
    ModelLoadError,
    RequestError,
    UnavailableError,
)
from serve_shim.server.error_response import error_body, error_status
from serve_shim.server.service import Service

from .client import Client
from .fake_engine import FakeEngine


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/responses", "/v1/models/a/b"])
def test_an_unknown_route_or_model_is_404(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status == 404
    assert reply.error["code"] in ("unknown_route", "model_not_found")


def test_a_trailing_slash_is_no_redirect(client: Client) -> None:
    assert client.get("/metrics/").status == 404
    assert client.post("/v1/completions/", {"prompt": "x"}).status == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/health", "GET"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
    ],
)
def test_a_wrong_method_is_405_with_allow(
    client: Client, method: str, path: str, allow: str
) -> None:
    reply = client.request(method, path, None)
    assert reply.status == 405
    assert reply.error["code"] == "method_not_allowed"
    assert allow in reply.headers["allow"]


def test_an_unexpected_exception_is_500_without_its_words(
    service: Service, make_client: Callable[..., Client], server_log: list[logging.LogRecord]
) -> None:
    class BrokenEngine(FakeEngine):
        def validate(self, prompt_token_ids: object, params: object) -> None:
            raise KeyError("/srv/secret at 0x7f00dead")

    service.attach(BrokenEngine())
    client = make_client(service)
    reply = client.post("/v1/completions", {"prompt": "x"}, headers={"x-request-id": "abc"})
    assert reply.status == 500
    assert reply.error["type"] == "internal_error"
    assert "secret" not in reply.body.decode()
    [record] = [record for record in server_log if record.levelname == "ERROR"]
    assert record.getMessage().startswith("Request abc failed: ")
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


@pytest.mark.parametrize("stream", [False, True])
def test_what_failed_on_purpose_is_logged_too(
    client: Client, engine: FakeEngine, server_log: list[logging.LogRecord], stream: bool
) -> None:
    def refuse(*_: object) -> None:
        raise GenerationError("the logits are NaN")

    engine.sink.on_step = refuse  # type: ignore[method-assign]
    reply = client.post("/v1/completions", {"prompt": "x", "stream": stream})
    assert b"NaN" not in reply.body
    assert b"its log has more" in reply.body
    [record] = [record for record in server_log if record.levelname == "ERROR"]
    assert "the logits are NaN" in record.getMessage()
    assert record.exc_info is not None


def test_a_dead_engine_is_500_for_those_in_flight(
    client: Client, engine: FakeEngine, server_log: list[logging.LogRecord]
) -> None:
    engine.death = "boom at /srv/secret"
    reply = client.post("/v1/completions", {"prompt": "x"})
    assert reply.status == 500
    assert reply.error["code"] == "engine_dead"
    assert "secret" not in reply.body.decode()
    [record] = [record for record in server_log if record.levelname == "ERROR"]
    assert "boom" in record.getMessage()
    assert not record.exc_info


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("m", param="p", code="c"), 400, "c"),
        (UnavailableError("m", code="draining"), 503, "draining"),
        (EngineDeadError("m"), 500, "engine_dead"),
        (ModelLoadError("m"), 500, "internal_error"),
        (ValueError("m"), 500, "internal_error"),
    ],
)
def test_status_and_code_of_an_error(error: Exception, status: int, code: str) -> None:
    assert error_status(error) == status
    assert error_body(error)["error"]["code"] == code


def test_long_messages_are_cut() -> None:
    message = error_body(RequestError("x" * 100_000))["error"]["message"]
    assert len(message) == 1000
    assert message.endswith("…")
