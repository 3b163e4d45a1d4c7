"""Chat as a client sees it: messages, templates, tools, logprobs."""

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from .client import Client, Reply
from .fake_engine import FakeEngine, FakeTokenizer, completion_text

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}


def chat(client: Client, *messages: Any, **fields: Any) -> Reply:
    body = {"messages": list(messages) or [USER], "max_tokens": 5, **fields}
    return client.post("/v1/chat/completions", body)


def rendered(engine: FakeEngine) -> str:
    """The prompt of the last request, as text."""
    return bytes(engine.seen[-1][1]).decode()


def test_chat_has_the_openai_shape(client: Client, engine: FakeEngine) -> None:
    body = chat(client).json()
    assert rendered(engine) == "<user>hi\n<assistant>"
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    prompt = list(b"<user>hi\n<assistant>")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": completion_text(prompt, 0, 5)},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["total_tokens"] == len(prompt) + 5


def test_content_parts_are_joined(client: Client, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert chat(client, {"role": "user", "content": parts}).status == 200
    assert rendered(engine).startswith("<user>one\ntwo\n")


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("text", "messages.1"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": "robot", "content": "x"}, "messages.1.role"),
        ({"role": ["user"], "content": "x"}, "messages.1.role"),
        ({"role": "user"}, "messages.1.content"),
        ({"role": "user", "content": 3}, "messages.1.content"),
        ({"role": "user", "content": []}, "messages.1.content"),
        ({"role": "user", "content": ["x"]}, "messages.1.content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
            "messages.1.content.0",
        ),
        ({"role": "assistant", "content": None}, "messages.1.content"),
        ({"role": "assistant", "tool_calls": [{"function": 3}]}, "messages.1.tool_calls.0"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages.1.tool_calls.0.function.arguments",
        ),
    ],
)
def test_a_wrong_message_is_400_that_says_where(client: Client, message: Any, where: str) -> None:
    reply = chat(client, USER, message)
    assert reply.status == 400
    assert f"`{where}`" in reply.error["message"]
    assert reply.error["param"] == "messages"


@pytest.mark.parametrize("messages", [None, [], "hi", {"role": "user"}])
def test_messages_must_be_a_list(client: Client, messages: Any) -> None:
    reply = client.post("/v1/chat/completions", {"messages": messages})
    assert reply.status == 400
    assert reply.error["param"] == "messages"


def test_tool_calls_reach_the_template_parsed(client: Client) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert chat(client, USER, {"role": "assistant", "tool_calls": [call]}).status == 200


def test_tools_reach_the_template_unless_the_choice_is_none(
    client: Client, engine: FakeEngine
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat(client, tools=tools, tool_choice="auto")
    assert "<tools>" in rendered(engine)
    chat(client, tools=tools, tool_choice="none")
    assert "<tools>" not in rendered(engine)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_tool_is_400(client: Client, choice: Any) -> None:
    reply = chat(client, tool_choice=choice)
    assert reply.status == 400
    assert reply.error["param"] == "tool_choice"


def test_continue_final_message_opens_no_new_turn(client: Client, engine: FakeEngine) -> None:
    start = {"role": "assistant", "content": "Well"}
    assert chat(client, USER, start, continue_final_message=True).status == 200
    assert rendered(engine) == "<user>hi\n<assistant>Well"


def test_contradicting_template_options_are_400(client: Client) -> None:
    reply = chat(client, continue_final_message=True, add_generation_prompt=True)
    assert reply.status == 400


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": "x"},
        {"tokenize": True},
        {"messages": []},
        {"add_generation_prompt": False},
        {"__class__": 1},
        {"enable_thinking": {"deep": 1}},
        {"date_string": "x" * 1000},
        "text",
    ],
)
def test_template_kwargs_are_an_allow_list_of_scalars(client: Client, kwargs: Any) -> None:
    reply = chat(client, chat_template_kwargs=kwargs)
    assert reply.status == 400
    assert reply.error["param"] == "chat_template_kwargs"


def test_an_allowed_template_kwarg_reaches_the_template(client: Client, engine: FakeEngine) -> None:
    assert chat(client, chat_template_kwargs={"enable_thinking": False}).status == 200
    assert "[enable_thinking=False]" in rendered(engine)


def test_a_template_in_the_request_is_400(client: Client) -> None:
    reply = chat(client, chat_template="{{ 1 }}")
    assert reply.status == 400
    assert reply.error["param"] == "chat_template"


def test_a_template_that_refuses_is_400(client: Client) -> None:
    reply = chat(client, {"role": "user", "content": "refuse"})
    assert reply.status == 400
    assert "refuses" in reply.error["message"]


def test_a_model_without_template_is_400(client: Client, engine: FakeEngine) -> None:
    engine.tokenizer.has_chat_template = False  # pyright: ignore
    reply = chat(client)
    assert reply.status == 400
    assert "--chat-template" in reply.error["message"]


def test_a_slow_template_keeps_nobody_else_waiting(client: Client, engine: FakeEngine) -> None:
    release = threading.Event()

    class SlowTokenizer(FakeTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> str:
            release.wait(10)
            return super().apply_chat_template(messages, **options)

    async def both() -> tuple[Reply, Reply]:
        engine.tokenizer = cast("Tokenizer", SlowTokenizer())
        body = {"messages": [USER], "max_tokens": 2}
        slow = client.start("POST", "/v1/chat/completions", body)
        await asyncio.sleep(0.01)
        other = client.start("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
        served = await other.reply()
        assert not slow.task.done()
        release.set()
        return served, await slow.reply()

    assert [reply.status for reply in client.run(both())] == [200, 200]


def test_max_completion_tokens_wins(client: Client, engine: FakeEngine) -> None:
    chat(client, max_tokens=9, max_completion_tokens=2)
    assert engine.seen[-1][2].max_tokens == 2


def test_without_max_tokens_the_context_is_the_limit(client: Client, engine: FakeEngine) -> None:
    body = chat(client, max_tokens=None).json()
    assert engine.seen[-1][2].max_tokens is None
    assert body["usage"]["total_tokens"] == engine.max_model_len


def test_logprobs_carry_bytes_and_alternatives(client: Client) -> None:
    content = chat(client, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert len(content) == 5
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert len(entry["top_logprobs"]) == 2


def test_logprobs_without_top_have_no_alternatives(client: Client) -> None:
    content = chat(client, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 5


def test_top_logprobs_need_logprobs(client: Client) -> None:
    reply = chat(client, top_logprobs=2)
    assert reply.status == 400
    assert reply.error["param"] == "top_logprobs"


def test_n_gives_n_messages(client: Client) -> None:
    choices = chat(client, n=3).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3
