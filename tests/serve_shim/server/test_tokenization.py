"""Tokenizing and back over HTTP."""

from typing import Any

import pytest

from .client import Client
from .fake_engine import BOS


def test_tokenize_a_text(client: Client) -> None:
    body = client.post("/tokenize", {"prompt": "hi"}).json()
    assert body == {"count": 3, "max_model_len": 256, "tokens": [BOS, 104, 105]}


def test_tokenize_without_special_tokens_and_with_strings(client: Client) -> None:
    options = {"add_special_tokens": False, "return_token_strs": True}
    body = client.post("/tokenize", {"prompt": "hi", **options}).json()
    assert body["tokens"] == [104, 105]
    assert body["token_strs"] == ["h", "i"]


def test_tokenize_a_conversation_as_chat_would(client: Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = client.post("/tokenize", {"messages": messages, "model": "fake"}).json()
    assert bytes(body["tokens"]) == b"<user>hi\n<assistant>"


def test_detokenize_is_the_inverse(client: Client) -> None:
    tokens = client.post("/tokenize", {"prompt": "hello"}).json()["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "<s>hello"}
    assert client.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 3}),
        ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [300]}),
        ("/detokenize", {"tokens": [2**63]}),
        ("/detokenize", {"tokens": [True]}),
    ],
)
def test_wrong_bodies_are_400(client: Client, path: str, body: Any) -> None:
    reply = client.post(path, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_an_unknown_model_is_404(client: Client) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert client.post(path, {**body, "model": "other"}).status == 404


def test_a_long_text_is_tokenized_whole(client: Client) -> None:
    assert client.post("/tokenize", {"prompt": "x" * 100_000}).json()["count"] == 100_001
