"""The openai package against a server process: its types parse, its errors are raised."""

from collections.abc import Iterator

import openai
import pytest

from .fake_engine import BOS, completion_text
from .server_process import ServerProcess

PROMPT = [BOS, *b"hi"]


@pytest.fixture
def api(running_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{running_server.url}/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        yield client


def test_models(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["fake"]
    assert api.models.retrieve("fake").owned_by == "serve-shim"


def test_completion(api: openai.OpenAI) -> None:
    reply = api.completions.create(model="fake", prompt="hi", max_tokens=5, logprobs=2, n=2)
    assert [c.text for c in reply.choices] == [completion_text(PROMPT, i, 5) for i in range(2)]
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 10
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(completion_text(PROMPT, 0, 5))


def test_completion_stream(api: openai.OpenAI) -> None:
    stream = api.completions.create(
        model="fake",
        prompt="hi",
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == completion_text(PROMPT, 0, 5)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


def test_chat(api: openai.OpenAI) -> None:
    reply = api.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_completion_tokens=5,
        logprobs=True,
        top_logprobs=2,
    )
    message = reply.choices[0].message
    assert message.role == "assistant"
    assert message.content == completion_text(list(b"<user>hi\n<assistant>"), 0, 5)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * 5


def test_chat_stream(api: openai.OpenAI) -> None:
    stream = api.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    text = "".join(delta.content or "" for delta in deltas)
    assert text == completion_text(list(b"<user>hi\n<assistant>"), 0, 5)


def test_errors_are_those_of_the_package(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="other", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        api.completions.create(model="fake", prompt="hi", n=1000)
    assert wrong.value.param == "n"
    assert "at most 64" in wrong.value.message


def test_an_error_in_a_stream_is_raised() -> None:
    with ServerProcess(step_s=0.05) as server, server.client() as client:
        server.wait_ready(client)
        api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = api.completions.create(model="fake", prompt="hi", max_tokens=90, stream=True)
        next(iter(stream))
        client.post("/v1/completions", json={"prompt": "hi", "seed": 666})
        with pytest.raises(openai.APIError) as failed:
            list(stream)
        assert failed.value.code == "engine_dead"
        api.close()
