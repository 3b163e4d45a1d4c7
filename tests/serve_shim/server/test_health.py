"""Probes and admission in every phase of the server's life."""

from collections.abc import Callable

import pytest

from serve_shim.engine.status import Phase
from serve_shim.server.routes.health import READY_PATHS
from serve_shim.server.service import Service

from .client import Client
from .fake_engine import FakeEngine

POSTS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


def assert_refused(client: Client, code: str) -> None:
    """Inference is refused with 503, before the body is even looked at."""
    for path in POSTS:
        reply = client.post(path, b"not json")
        assert reply.status == 503
        assert reply.error["code"] == code
        assert int(reply.headers["retry-after"]) >= 1
        assert (reply.headers.get("connection") == "close") == (code == "draining")
    assert client.get("/v1/models").status == 503


@pytest.mark.parametrize("path", READY_PATHS)
def test_starting_is_503_with_progress(
    service: Service, make_client: Callable[..., Client], path: str
) -> None:
    client = make_client(service)
    service.status.advance(Phase.LOAD, 3, 8)
    reply = client.get(path)
    assert reply.status == 503
    body = reply.json()
    assert body.pop("elapsed_s") >= 0
    assert body == {"status": "starting", "phase": "load", "done": 3, "total": 8}


def test_starting_refuses_inference_and_lives(
    service: Service, make_client: Callable[..., Client]
) -> None:
    client = make_client(service)
    service.status.advance(Phase.LOAD, 3, 8)
    assert_refused(client, "starting")
    assert "load 3/8" in client.post(POSTS[0], b"").error["message"]
    for path in ("/livez", "/metrics", "/version"):
        assert client.get(path).status == 200


@pytest.mark.parametrize("path", [*READY_PATHS, "/livez"])
def test_ready_is_200(client: Client, path: str) -> None:
    assert client.get(path).status == 200
    assert client.request("HEAD", path, None).status == 200


def test_draining_is_503_and_refuses(client: Client, service: Service) -> None:
    service.drain()
    reply = client.get("/readyz")
    assert (reply.status, reply.json()["status"]) == (503, "draining")
    assert client.get("/livez").status == 200
    assert_refused(client, "draining")


def test_an_engine_without_progress_is_503(client: Client, engine: FakeEngine) -> None:
    engine.death = "no step for 30 s"
    reply = client.get("/health")
    assert reply.status == 503
    assert reply.json() == {"status": "failed", "reason": "stalled"}


def test_a_failed_server_is_503_and_refuses(client: Client, service: Service) -> None:
    service.fail("KeyError: /srv/secret")
    for path in READY_PATHS:
        assert client.get(path).json() == {"status": "failed", "reason": "engine_dead"}
    assert_refused(client, "engine_dead")
