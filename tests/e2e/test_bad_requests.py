"""Requests that are wrong get an OpenAI-shaped 400; the next good one is right."""

import json
import time
from typing import Any

import httpx
import pytest
from server_process import Server, reference

ENTRY = reference("completions")[0]
BAD_BODIES: dict[str, str] = {
    "nan temperature": '{"prompt": "a", "temperature": NaN}',
    "infinite temperature": '{"prompt": "a", "temperature": 1e400}',
    "empty prompt": '{"prompt": ""}',
    "empty id list": '{"prompt": []}',
    "negative id": '{"prompt": [-1]}',
    "id out of vocabulary": '{"prompt": [49152]}',
    "huge id": '{"prompt": [1099511627776]}',
    "zero tokens wanted": '{"prompt": "a", "max_tokens": -3}',
    "huge n": '{"prompt": "a", "n": 100000}',
    "wrong type": '{"prompt": "a", "top_p": "much"}',
    "min over max": '{"prompt": "a", "max_tokens": 2, "min_tokens": 5}',
    "huge min without max": '{"prompt": "a", "max_tokens": null, "min_tokens": 1000000}',
    "stop id out of vocabulary": '{"prompt": "a", "stop_token_ids": [99999999]}',
    "bias out of vocabulary": '{"prompt": "a", "logit_bias": {"99999999": 1}}',
    "empty stop": '{"prompt": "a", "stop": ""}',
    "too many stops": '{"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}',
    "unsupported grammar": '{"prompt": "a", "guided_json": {}}',
    "not an object": "[1, 2]",
    "not json": "{",
    "deep": "[" * 2000 + "]" * 2000,
    "long integer": '{"prompt": "a", "seed": ' + "9" * 10_000 + "}",
    "duplicate key": '{"prompt": "a", "prompt": "b"}',
    "lone surrogate": '{"prompt": "\\ud800"}',
}


def _send(server: Server, content: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.post(
        server.url + "/v1/completions",
        content=content,
        headers=headers,
        timeout=60,
        trust_env=False,
    )


def _assert_next_is_right(server: Server) -> None:
    body: dict[str, Any] = {
        "prompt": ENTRY["prompt"],
        "max_tokens": 6,
        "temperature": 0,
        "return_token_ids": True,
    }
    choice = server.post("/v1/completions", body)["choices"][0]
    assert choice["token_ids"] == ENTRY["greedy_ids"][:6]


def _load(server: Server) -> list[str]:
    """The metrics of running requests and used blocks, each as `name{labels} value`."""
    names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
    lines = server.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(names)]
    assert len(found) == len(names), lines
    return found


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_body_is_400_and_the_next_request_is_right(float32_server: Server, name: str) -> None:
    answer = _send(float32_server, BAD_BODIES[name].encode())
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 2000
    _assert_next_is_right(float32_server)


def test_invalid_utf8_is_400(float32_server: Server) -> None:
    assert _send(float32_server, b'{"prompt": "\xff"}').status_code == 400


def test_closed_stream_frees_its_blocks(float32_server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream(
        "POST", float32_server.url + "/v1/completions", json=body, timeout=60, trust_env=False
    ) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
    deadline = time.monotonic() + 20
    while in_use := [load for load in _load(float32_server) if not load.endswith(" 0.0")]:
        assert time.monotonic() < deadline, in_use
        time.sleep(0.05)
    _assert_next_is_right(float32_server)
