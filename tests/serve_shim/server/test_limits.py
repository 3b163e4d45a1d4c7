"""Requests that ask for too much or for nonsense: 400, named, and the engine goes on."""

from typing import Any

import pytest

from serve_shim.engine.status import StartupStatus
from serve_shim.server.service import Service
from serve_shim.settings.tree import LimitsConfig, Settings

from .client import Client
from .fake_engine import VOCAB_SIZE, FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BIG = 2**63


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {**prompt, "max_tokens": 3, **fields}


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 65),
        ("n", 0),
        ("n", -1),
        ("n", BIG),
        ("n", "3"),
        ("n", 1.5),
        ("n", True),
        ("stop", ["a"] * 5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [3]),
        ("stop", 3),
        ("stop", "x" * 1025),
        ("stop", ["a", "x" * 1025]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [BIG]),
        ("stop_token_ids", [1] * 129),
        ("stop_token_ids", "1"),
        ("logit_bias", {str(i): 1 for i in range(301)}),
        ("logit_bias", {str(VOCAB_SIZE): 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {str(BIG): 1}),
        ("logit_bias", {"9" * 100: 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "2"}),
        ("logit_bias", {"1": 1, "01": 1}),
        ("logit_bias", [1]),
        ("temperature", -0.1),
        ("temperature", 1e9),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("seed", 2**64),
        ("seed", 1.5),
        ("min_tokens", -1),
        ("max_tokens", -1),
        ("max_tokens", BIG),
        ("max_tokens", 10**19),
        ("prompt_logprobs", 21),
        ("stream", "yes"),
        ("stream_options", 3),
        ("model", 3),
        ("model", ["fake"]),
    ],
)
def test_a_field_out_of_range_is_400_and_the_engine_goes_on(
    client: Client, engine: FakeEngine, path: str, param: str, value: Any
) -> None:
    reply = client.post(path, body(path, **{param: value}))
    assert reply.status == 400
    assert reply.error["param"] == param
    assert param in reply.error["message"]
    assert engine.seen == []
    assert client.post(path, body(path)).status == 200


@pytest.mark.parametrize("value", [21, -1, "1", True, 1.5])
def test_completion_logprobs_out_of_range_are_400(client: Client, value: Any) -> None:
    assert client.post(TEXT, body(TEXT, logprobs=value)).error["param"] == "logprobs"


@pytest.mark.parametrize("value", [21, -1, "1", True])
def test_chat_top_logprobs_out_of_range_are_400(client: Client, value: Any) -> None:
    reply = client.post(CHAT, body(CHAT, logprobs=True, top_logprobs=value))
    assert reply.status == 400
    assert reply.error["param"] in ("top_logprobs", "logprobs")


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [[]],
        ["a", 1],
        [1, "a"],
        [[1], "a"],
        [1.5],
        [True],
        {"a": 1},
        3,
        [-1],
        [BIG],
        [VOCAB_SIZE],
        [[1], [VOCAB_SIZE]],
        [["a"]],
    ],
)
def test_a_wrong_prompt_is_400(client: Client, engine: FakeEngine, prompt: Any) -> None:
    reply = client.post(TEXT, body(TEXT, prompt=prompt, add_special_tokens=False))
    assert reply.status == 400
    assert reply.error["param"] == "prompt"
    assert engine.running == set()
    assert client.post(TEXT, body(TEXT)).status == 200


def test_a_missing_prompt_is_400(client: Client) -> None:
    assert client.post(TEXT, {}).error["param"] == "prompt"
    assert client.post(CHAT, {}).error["param"] == "messages"


def test_a_prompt_longer_than_the_context_is_400_with_both_numbers(client: Client) -> None:
    reply = client.post(TEXT, body(TEXT, prompt=[1] * 300))
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert "256" in reply.error["message"]
    assert "300" in reply.error["message"]


def test_a_long_text_is_400_too(client: Client) -> None:
    reply = client.post(TEXT, body(TEXT, prompt="x" * 10_000))
    assert reply.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 4},
        {"max_tokens": None, "min_tokens": 10_000},
        {"max_tokens": None, "min_tokens": 10**18},
    ],
)
def test_min_tokens_that_cannot_be_is_400_and_the_next_is_served(
    client: Client, path: str, fields: dict[str, Any]
) -> None:
    assert client.post(path, body(path, **fields)).status == 400
    assert client.post(path, body(path)).status == 200


def test_too_many_prompts_are_400(client: Client) -> None:
    reply = client.post(TEXT, body(TEXT, prompt=["a"] * 257))
    assert reply.error["param"] == "prompt"
    assert "257" in reply.error["message"]


def test_too_many_completions_in_all_are_400(client: Client) -> None:
    reply = client.post(TEXT, body(TEXT, prompt=["a"] * 64, n=5))
    assert reply.error["param"] == "n"
    assert "320" in reply.error["message"]


def test_limits_are_settings() -> None:
    settings = Settings(model="fake", limits=LimitsConfig(max_n=2, max_stop=0))
    from serve_shim.server.app import build_app

    service = Service(settings, StartupStatus())
    service.attach(FakeEngine())
    client = Client(build_app(service))
    assert client.post(TEXT, body(TEXT, n=2)).status == 200
    assert client.post(TEXT, body(TEXT, n=3)).status == 400
    assert client.post(TEXT, body(TEXT, stop=["a"])).status == 400
    client.close()


def test_many_wrong_fields_give_a_bounded_message(client: Client) -> None:
    wrong = dict.fromkeys(("n", "top_p", "top_k", "min_p", "seed", "temperature"), "x" * 10000)
    reply = client.post(TEXT, body(TEXT, **wrong, prompt=[{"x": "y" * 100_000}]))
    assert reply.status == 400
    assert len(reply.body) < 2000
    assert "more" in reply.error["message"]


def test_a_burst_is_served_or_refused_and_nothing_is_lost(
    client: Client, engine: FakeEngine
) -> None:
    async def burst() -> list[int]:
        engine.capacity, engine.step_s = 8, 0.001
        calls = [client.start("POST", TEXT, body(TEXT)) for _ in range(200)]
        return [(await call.reply()).status for call in calls]

    statuses = client.run(burst())
    assert set(statuses) == {200, 503}
    assert statuses.count(200) == len(engine.ended) >= 8
    text = client.get("/metrics").body.decode()
    refused = statuses.count(503)
    assert f'admission_rejections_total{{reason="server_overloaded"}} {refused}.0' in text


def test_overload_is_503_with_retry_after_and_aborts_the_rest(
    client: Client, engine: FakeEngine
) -> None:
    engine.capacity = 2
    reply = client.post(TEXT, body(TEXT, prompt=["a", "b", "c"]))
    assert reply.status == 503
    assert reply.error["code"] == "server_overloaded"
    assert reply.headers["retry-after"] == "3"
