"""Tokens on the wire: finite numbers, equal floats, one entry per text."""

import math
from typing import cast

from serve_shim.engine.output import TokenLogprob, TokenLogprobs
from serve_shim.server.wire.token_text import (
    TokenText,
    chat_logprobs,
    completion_logprobs,
    finite,
    prompt_logprobs,
)
from serve_shim.tokenization.tokenizer import Tokenizer


class TwoSpellings:
    """Ids 1 and 2 have the same text; id 3 is half a character."""

    def token_text(self, token_id: int) -> str:
        return {1: "a", 2: "a", 3: "\ufffd"}.get(token_id, f"<{token_id}>")

    def token_bytes(self, token_id: int) -> bytes:
        return {1: b"a", 2: b"a", 3: b"\xe2\x82"}.get(token_id, b"")


TEXT = TokenText(cast(Tokenizer, TwoSpellings()))
ENTRY = TokenLogprobs(
    2, -1.25, (TokenLogprob(1, -0.5, 1), TokenLogprob(2, -1.25, 2), TokenLogprob(9, -math.inf, 3))
)


def test_what_json_cannot_say_is_minus_9999() -> None:
    assert finite(-math.inf) == finite(math.nan) == -9999.0
    assert finite(-0.1) == -0.1


def test_equal_texts_keep_the_larger_value() -> None:
    wire = completion_logprobs([2], [ENTRY], TEXT, 0)
    assert wire["token_logprobs"] == [-1.25]
    assert wire["top_logprobs"] == [{"a": -0.5, "<9>": -9999.0}]


def test_offsets_go_on_from_where_the_last_piece_ended() -> None:
    wire = completion_logprobs([9, 1, 9], [ENTRY] * 3, TEXT, 10)
    assert wire["text_offset"] == [10, 13, 14]


def test_a_position_without_logprob_is_null() -> None:
    wire = completion_logprobs([1, 2], [None, ENTRY], TEXT, 0)
    assert wire["token_logprobs"][0] is None
    assert wire["top_logprobs"][0] is None


def test_chat_gives_the_bytes_of_half_a_character() -> None:
    [entry] = chat_logprobs([TokenLogprobs(3, -1.0, ())], TEXT, 1)["content"]
    assert entry == {"token": "\ufffd", "logprob": -1.0, "bytes": [0xE2, 0x82], "top_logprobs": []}


def test_prompt_logprobs_are_by_id() -> None:
    [first, second] = prompt_logprobs([None, ENTRY], TEXT)
    assert first is None
    assert second is not None
    assert list(second) == ["1", "2", "9"]
    assert second["2"] == {"logprob": -1.25, "rank": 2, "decoded_token": "a"}


def test_without_tokenizer_tokens_are_ids() -> None:
    text = TokenText(None)
    assert text(7) == "token_id:7"
    assert bytes(text.utf8(7)) == b"token_id:7"
    assert TokenText(cast(Tokenizer, TwoSpellings()), as_ids=True)(1) == "token_id:1"
