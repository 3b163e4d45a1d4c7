"""Streams byte by byte, and as the parsers of four kinds of client see them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from serve_shim.errors import EngineDeadError
from serve_shim.server.in_flight import InFlight
from serve_shim.server.service import Service
from serve_shim.server.sse import DONE, PING, EventStreamResponse

from .client import Client, Reply
from .fake_engine import BOS, FakeEngine, completion_text

PROMPT = [BOS, *b"hi"]
PATHS = ["/v1/completions", "/v1/chat/completions"]


def stream(client: Client, path: str = PATHS[0], **fields: Any) -> Reply:
    prompt = (
        {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    )
    return client.post(path, {**prompt, "max_tokens": 4, "stream": True, **fields})


def pieces(events: list[Any], index: int = 0) -> list[str]:
    """The texts of one choice's events."""
    choices = [choice for event in events for choice in event["choices"]]
    mine = [choice for choice in choices if choice["index"] == index]
    return [c["text"] if "text" in c else c["delta"]["content"] for c in mine]


@pytest.mark.parametrize("path", PATHS)
def test_stream_headers(client: Client, path: str) -> None:
    reply = stream(client, path)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers


def test_stream_of_a_completion_is_one_event_per_token(client: Client) -> None:
    events = stream(client).events()
    assert pieces(events) == list(completion_text(PROMPT, 0, 4))
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None, None, None, "length"]
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"text_completion"}


def test_stream_of_a_chat_names_the_role_with_the_first_token_only(client: Client) -> None:
    events = stream(client, PATHS[1]).events()
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"]
    assert all("role" not in delta for delta in deltas[1:])
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", PATHS)
def test_usage_is_a_last_event_without_choices_where_asked_for(client: Client, path: str) -> None:
    assert all("usage" not in event for event in stream(client, path).events())
    events = stream(client, path, stream_options={"include_usage": True}).events()
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert all("usage" not in event for event in events[:-1])


def test_continuous_usage_is_in_every_event(client: Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(client, stream_options=options).events()
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("path", PATHS)
def test_stream_options_without_stream_are_400(client: Client, path: str) -> None:
    reply = stream(client, path, stream=False, stream_options={"include_usage": True})
    assert reply.status == 400
    assert reply.error["param"] == "stream_options"


def test_stream_of_many_prompts_interleaves_choices_by_index(client: Client) -> None:
    events = stream(client, prompt=[[97], [98, 99]], n=2).events()
    for index, ids in enumerate([[97], [97], [98, 99], [98, 99]]):
        assert "".join(pieces(events, index)) == completion_text(ids, index % 2, 4)


def test_stream_with_echo_begins_with_the_prompt(client: Client) -> None:
    events = stream(client, echo=True, logprobs=1).events()
    assert pieces(events)[0] == "hi" + completion_text(PROMPT, 0, 1)
    logprobs = [event["choices"][0]["logprobs"] for event in events]
    assert [len(entry["tokens"]) for entry in logprobs] == [4, 1, 1, 1]
    assert logprobs[1]["text_offset"] == [len("<s>hi") + 1]


def test_stream_with_prompt_logprobs_is_400(client: Client) -> None:
    assert stream(client, prompt_logprobs=1).error["param"] == "prompt_logprobs"


def test_prompt_ids_are_in_the_first_event_alone(client: Client) -> None:
    events = stream(client, return_token_ids=True).events()
    given = [event["choices"][0]["prompt_token_ids"] for event in events]
    assert given == [PROMPT, None, None, None]


@pytest.mark.parametrize("path", PATHS)
def test_an_error_before_the_first_event_has_its_own_status(client: Client, path: str) -> None:
    reply = stream(client, path, max_tokens=10_000)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"


def test_an_error_after_the_first_event_is_an_event_and_done(
    client: Client, engine: FakeEngine
) -> None:
    async def die_after_two() -> Reply:
        engine.step_s = 0.01
        call = client.start("POST", PATHS[0], {"prompt": "x", "max_tokens": 50, "stream": True})
        for _ in range(3):
            await call.next_message()
        engine.death = "/secret/path: the cause"
        return await call.reply()

    reply = client.run(die_after_two())
    assert reply.status == 200
    events = reply.events()
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert events[-1]["error"]["code"] == "engine_dead"
    assert "secret" not in events[-1]["error"]["message"]


def test_comments_keep_a_queued_stream_alive(
    client: Client, service: Service, engine: FakeEngine
) -> None:
    async def queue_for_a_while() -> Reply:
        engine.gate.clear()
        service.keep_alive_s = 0.01
        call = client.start("POST", PATHS[0], {"prompt": "x", "max_tokens": 2, "stream": True})
        start = await call.next_message()
        assert start["type"] == "http.response.start"
        assert [(await call.next_message())["body"] for _ in range(2)] == [PING, PING]
        engine.gate.set()
        return await call.reply()

    reply = client.run(queue_for_a_while())
    assert len(reply.events()) == 2
    assert reply.body.startswith(b": ping\n\n")


def test_text_that_looks_like_a_line_end_cannot_split_an_event() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"

    response = EventStreamResponse(events(), InFlight(), keep_alive_s=1)
    assert response.headers["content-type"].startswith("text/event-stream")
    from serve_shim.server.json_response import quoted, to_json
    from serve_shim.server.wire.envelope import Envelope, EventWriter

    text = "a\r\n\u2028\u0085\ud800b"
    assert quoted(text) == to_json(text)
    event = EventWriter(Envelope("i", "k", 0, "m")).choice(quoted(text))
    assert len(event.decode("ascii").splitlines()) == 2
    assert json.loads(event[6:])["choices"] == [text]


def vllm_bench_messages(data: bytes) -> list[str]:
    """Splits as the client of `vllm bench serve` does: events by two LF, in any chunking."""
    messages: list[str] = []
    buffer = ""
    for start in range(0, len(data), 7):
        buffer += data[start : start + 7].decode()
        while "\n\n" in buffer:
            message, buffer = buffer.split("\n\n", 1)
            if message.strip() and not message.startswith(":"):
                messages.append(message.strip().removeprefix("data: "))
    return messages


def test_a_client_that_splits_at_blank_lines_reads_the_stream(client: Client) -> None:
    reply = stream(client, stream_options={"include_usage": True})
    messages = vllm_bench_messages(reply.body)
    assert messages[-1] == "[DONE]"
    parsed = [json.loads(message) for message in messages[:-1]]
    assert "".join(c["text"] for m in parsed for c in m["choices"]) == completion_text(PROMPT, 0, 4)
    assert [m["usage"]["completion_tokens"] for m in parsed if not m["choices"]] == [4]


def test_a_client_that_compares_raw_lines_sees_done(client: Client) -> None:
    lines = [line for line in stream(client).body.split(b"\n") if line]
    assert lines[-1] == b"data: [DONE]"
    assert all(line.startswith(b"data: {") for line in lines[:-1])


def test_a_stream_that_fails_before_it_begins_raises() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        raise EngineDeadError("gone")
        yield b""

    async def respond() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        response = EventStreamResponse(broken(), InFlight(), keep_alive_s=1)
        with pytest.raises(EngineDeadError):
            await response({"type": "http"}, receive, send)
        return sent

    assert asyncio.run(respond()) == []
    assert DONE == b"data: [DONE]\n\n"
