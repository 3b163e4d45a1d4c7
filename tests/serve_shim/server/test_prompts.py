"""Texts to ids: refused before the work where they cannot fit, and never on the event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import pytest

from serve_shim.errors import RequestError
from serve_shim.server.prompts import PromptMaker
from serve_shim.server.wire.chat import Conversation
from serve_shim.tokenization.tokenizer import Tokenizer

from .client import Client
from .fake_engine import FakeEngine, FakeTokenizer

T = TypeVar("T")


class Observed(FakeTokenizer):
    """Remembers where it worked; one of its tokens stands for four characters."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return super().encode(text, add_special_tokens)

    def token_text(self, token_id: int) -> str:
        self.threads.append(threading.current_thread().name)
        return super().token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return b"four" if token_id == 299 else super().token_bytes(token_id)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


def make(tokenizer: FakeTokenizer, prompts: Sequence[str | list[int]], limit: int | None) -> Any:
    known = cast(Tokenizer, tokenizer)
    return run(PromptMaker().to_prompts(known, prompts, max_model_len=limit))


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    tokenizer = Observed()
    with pytest.raises(RequestError, match=r"1000 tokens.*4001 characters") as caught:
        make(tokenizer, ["short", "x" * 4001], 1000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert tokenizer.threads == []


def test_a_text_that_might_fit_is_tokenized() -> None:
    [prompt] = make(Observed(), ["x" * 4000], 1000)
    assert len(prompt.token_ids) == 4001


def test_a_text_is_tokenized_whole_where_no_limit_is_given() -> None:
    [prompt] = make(Observed(), ["x" * 4001], None)
    assert len(prompt.token_ids) == 4002


def test_a_conversation_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    tokenizer = Observed()
    messages = [{"role": "user", "content": "x" * 4001}]
    conversation = Conversation(
        messages, tools=None, add_generation_prompt=True, continue_final_message=False, kwargs={}
    )
    work = PromptMaker().render(cast(Tokenizer, tokenizer), conversation, max_model_len=1000)
    with pytest.raises(RequestError, match="shorten `messages`") as caught:
        run(work)
    assert caught.value.code == "context_length_exceeded"
    assert tokenizer.threads == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x" * 10_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 10_000}]}),
    ],
)
def test_routes_refuse_what_cannot_fit(
    client: Client, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.tokenizer = cast(Tokenizer, tokenizer := Observed())
    reply = client.post(path, body)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert tokenizer.threads == []


def test_token_strings_are_made_off_the_event_loop(client: Client, engine: FakeEngine) -> None:
    engine.tokenizer = cast(Tokenizer, tokenizer := Observed())
    body = {"prompt": "x" * 3000, "return_token_strs": True}
    assert client.post("/tokenize", body).json()["count"] == 3001
    assert len(tokenizer.threads) > 3000
    assert all(name.startswith("prompts") for name in tokenizer.threads)
