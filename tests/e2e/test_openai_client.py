"""openai-python, unmodified, against the real server."""

import openai
import pytest
from openai import OpenAI
from server_process import Server


@pytest.fixture
def client(float32_server: Server) -> OpenAI:
    return OpenAI(base_url=float32_server.url + "/v1", api_key="unused", max_retries=0, timeout=100)


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_completion_has_text_and_usage(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="The capital of France is", max_tokens=5, temperature=0
    )
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 5)


def test_stream_joins_to_the_whole_answer(client: OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content == "The capital of France is Paris."
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 8
    assert usage.total_tokens == whole.usage.total_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_chat_logprobs_hold_the_sampled_token(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
        temperature=0,
    )
    content = answer.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert len(content.content) == 4
    for entry in content.content:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.token in {top.token for top in entry.top_logprobs}


def test_seeded_choices_repeat_and_differ_from_each_other(client: OpenAI, model: str) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model=model, prompt="Once upon a time", max_tokens=12, n=3, seed=7, temperature=1.0
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert first == texts()
    assert len(set(first)) == 3


def test_errors_are_typed(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.completions.create(model="no-such-model", prompt="a")
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt=[1] * 100_000)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=model, prompt="a", temperature=-1)
