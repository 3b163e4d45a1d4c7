"""Request ids: a harmless one is echoed, no client's id is ever a key."""

import re

import pytest

from .client import Client
from .fake_engine import FakeEngine

BODY = {"prompt": "hi", "max_tokens": 1}


@pytest.mark.parametrize("sent", ["abc", "A-b_c.9", "x" * 128])
def test_a_harmless_id_is_echoed(client: Client, sent: str) -> None:
    reply = client.post("/v1/completions", BODY, headers={"x-request-id": sent})
    assert reply.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a\tb", "<script>", "a/../b", "é", "a;b"])
def test_any_other_id_is_replaced(client: Client, sent: str) -> None:
    reply = client.post("/v1/completions", BODY, headers={"x-request-id": sent})
    assert re.fullmatch(r"req-[0-9a-f]{32}", reply.headers["x-request-id"])


def test_the_engine_never_sees_a_client_id(client: Client, engine: FakeEngine) -> None:
    for _ in range(2):
        client.post("/v1/completions", BODY, headers={"x-request-id": "same"})
    ids = [request_id for request_id, _, _ in engine.seen]
    assert len(set(ids)) == 2
    assert not any("same" in request_id for request_id in ids)


def test_errors_and_streams_carry_an_id_too(client: Client) -> None:
    assert "x-request-id" in client.get("/nowhere").headers
    assert "x-request-id" in client.post("/v1/completions", {**BODY, "stream": True}).headers
