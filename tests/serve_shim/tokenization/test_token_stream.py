"""The pieces of a stream join to the whole text and never hold half a character."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_shim.tokenization import Tokenizer, TokenStream


def _bytes_of(token_id: int) -> bytes:
    return bytes([token_id])


def _feed(data: bytes) -> tuple[list[str], str]:
    stream = TokenStream(_bytes_of)
    return [stream.step(byte) for byte in data], stream.flush()


def test_split_character_is_held_until_whole() -> None:
    pieces, rest = _feed("é🦙".encode())
    assert pieces == ["", "é", "", "", "", "🦙"]
    assert rest == ""


def test_unfinished_character_is_flushed_as_replacement() -> None:
    pieces, rest = _feed("a🦙".encode()[:-1])
    assert "".join(pieces) == "a"
    assert rest == "\ufffd"


def test_invalid_byte_does_not_hold_back_what_follows() -> None:
    pieces, rest = _feed(b"\xffok")
    assert "".join(pieces) + rest == "\ufffdok"
    assert pieces[1] == "o"


def test_skipped_tokens_give_no_text() -> None:
    stream = TokenStream(_bytes_of, skipped={65})
    assert [stream.step(65), stream.step(66)] == ["", "B"]


@given(st.text())
@settings(deadline=None, max_examples=200)
def test_valid_text_streams_without_replacement(text: str) -> None:
    pieces, rest = _feed(text.encode("utf-8", "ignore"))
    expected = text.encode("utf-8", "ignore").decode()
    assert "".join(pieces) == expected
    assert rest == ""


@given(st.binary())
@settings(deadline=None, max_examples=200)
def test_any_bytes_stream_to_their_lossy_text(data: bytes) -> None:
    pieces, rest = _feed(data)
    assert "".join(pieces) + rest == data.decode("utf-8", "replace")


@pytest.mark.parametrize("skip", [True, False])
def test_embedded_stream_equals_decoding_at_once(
    embedded: Tokenizer, entries: list[dict[str, Any]], skip: bool
) -> None:
    for entry in [*entries, {"greedy_ids": embedded.encode("日本語 🦙🦙 naïve")}]:
        stream = embedded.stream(skip_special_tokens=skip)
        text = "".join(stream.step(token) for token in entry["greedy_ids"]) + stream.flush()
        assert text == embedded.decode(entry["greedy_ids"], skip_special_tokens=skip)
