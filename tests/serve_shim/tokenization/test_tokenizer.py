"""Ids and texts of the embedded model's tokenizer, and what a tokenizer refuses."""

from typing import Any

import pytest

from serve_shim.errors import RequestError, TemplateError, TokenizerError
from serve_shim.tokenization import Tokenizer


def test_reference_prompts_encode_to_reference_ids(
    embedded: Tokenizer, entries: list[dict[str, Any]]
) -> None:
    for entry in entries:
        assert embedded.encode(entry["prompt"]) == entry["prompt_ids"]


def test_reference_ids_decode_to_reference_texts(
    embedded: Tokenizer, entries: list[dict[str, Any]]
) -> None:
    for entry in entries:
        text = embedded.decode(entry["greedy_ids"], skip_special_tokens=False)
        assert text == entry["greedy_text"]


def test_reference_chats_render_to_reference_prompts(
    embedded: Tokenizer, entries: list[dict[str, Any]]
) -> None:
    chats = [entry for entry in entries if "messages" in entry]
    assert len(chats) == 2
    for entry in chats:
        prompt = embedded.apply_chat_template(entry["messages"])
        assert prompt == entry["prompt"]
        assert embedded.encode(prompt, add_special_tokens=False) == entry["prompt_ids"]


def test_special_tokens_are_known_and_skipped(embedded: Tokenizer) -> None:
    assert embedded.eos_ids == (2,)
    assert {0, 1, 2} <= embedded.special_ids
    ids = embedded.encode("<|im_start|>hello<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert embedded.decode(ids) == "hello"


@pytest.mark.parametrize("text", ["naïve 東京 🦙", " leading", "tab\tand\nnewline", "🏳️‍🌈"])
def test_token_bytes_join_to_the_text(embedded: Tokenizer, text: str) -> None:
    ids = embedded.encode(text)
    assert b"".join(embedded.token_bytes(token) for token in ids).decode() == text
    assert embedded.decode(ids) == text


def test_part_of_a_character_shows_as_replacement(embedded: Tokenizer) -> None:
    part = next(t for t in embedded.encode("🦙") if not _is_text(embedded.token_bytes(t)))
    assert "\ufffd" in embedded.token_text(part)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_id_without_token_is_empty(embedded: Tokenizer) -> None:
    beyond = embedded.vocab_size
    assert embedded.token_bytes(beyond) == b""
    assert embedded.decode([504, beyond]) == embedded.decode([504])
    assert embedded.token_bytes(-1) == b""


@pytest.mark.parametrize("ids", [[-1], [2**40], ["a"], [1.5]])
def test_decode_refuses_what_is_no_id(embedded: Tokenizer, ids: list[Any]) -> None:
    with pytest.raises(RequestError, match="not token ids"):
        embedded.decode(ids)


def test_encode_refuses_lone_surrogates(embedded: Tokenizer) -> None:
    with pytest.raises(RequestError, match="cannot be encoded"):
        embedded.encode("a\ud800b")


def test_other_chat_template_replaces_only_in_the_copy(embedded: Tokenizer) -> None:
    other = embedded.with_chat_template("{{ eos_token }}{{ messages[0].content }}")
    messages = [{"role": "user", "content": "x"}]
    assert other.apply_chat_template(messages) == "<|im_end|>x"
    assert embedded.apply_chat_template(messages) != "<|im_end|>x"


def test_malformed_chat_template_names_its_line(embedded: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"line 2: .*endfor"):
        embedded.with_chat_template("\n{% for x in y %}")


def test_no_chat_template_is_an_error_that_says_so(embedded: Tokenizer) -> None:
    plain = Tokenizer(embedded._backend, special_tokens={}, where="here")
    assert not plain.has_chat_template
    with pytest.raises(TemplateError, match="--chat-template") as caught:
        plain.apply_chat_template([{"role": "user", "content": "x"}])
    assert caught.value.code == "chat_template_missing"


def test_bos_is_added_once_and_only_with_special_tokens(embedded: Tokenizer) -> None:
    tokenizer = Tokenizer(
        embedded._backend, special_tokens={"bos_token": "<|im_start|>"}, where="x", add_bos=True
    )
    assert tokenizer.encode("hi")[0] == 1
    assert tokenizer.encode("<|im_start|>hi").count(1) == 1
    assert tokenizer.encode("hi", add_special_tokens=False)[0] != 1
