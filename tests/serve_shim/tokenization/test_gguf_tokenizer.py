"""Tokenizers built from GGUF metadata: both kinds, and data that does not fit together."""

from typing import Any

import pytest

from serve_shim.errors import ModelLoadError, TokenizerError
from serve_shim.models.fields import Fields
from serve_shim.tokenization import Tokenizer, gguf_tokenizer

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "lo", "▁he"]
_LETTERS = ["a", "b", "c", "ab", "1", "2", "Ġ", "Ġa", "<eos>"]


def _sentencepiece(**changes: Any) -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES]
    count = len(tokens)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (count - len(_PIECES)) + [-float(len(p)) for p in _PIECES],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(_PIECES)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def _byte_level(**changes: Any) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": _LETTERS,
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        "tokenizer.ggml.token_type": [1] * 8 + [3],
        "tokenizer.ggml.eos_token_id": 8,
        **changes,
    }


def _build(values: dict[str, object]) -> Tokenizer:
    tokenizer = gguf_tokenizer(Fields(values, "model.gguf"))
    assert tokenizer is not None
    return tokenizer


def _texts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text)]


def test_no_metadata_is_no_tokenizer() -> None:
    assert gguf_tokenizer(Fields({}, "model.gguf")) is None


def test_sentencepiece_merges_by_score_and_adds_bos() -> None:
    # The best score is the shortest piece, so pairs come first and "hell" waits for them.
    tokenizer = _build(_sentencepiece())
    assert _texts(tokenizer, "hello hello")[0] == "<s>"
    assert "".join(_texts(tokenizer, "hello hello")[1:]) == " hello hello"
    assert tokenizer.decode(tokenizer.encode("hello hello")) == "hello hello"
    assert _texts(tokenizer, "lo") == ["<s>", " ", "lo"]


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = _build(_sentencepiece())
    ids = tokenizer.encode("é")
    assert [tokenizer.token_bytes(token) for token in ids[-2:]] == [b"\xc3", b"\xa9"]
    stream = tokenizer.stream()
    assert [stream.step(token) for token in ids[-2:]] == ["", "é"]


def test_sentencepiece_without_space_prefix() -> None:
    tokenizer = _build(_sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"
    assert _texts(tokenizer, "lo") == ["<s>", "lo"]


def test_byte_level_merges_and_special_tokens() -> None:
    tokenizer = _build(_byte_level())
    assert tokenizer.encode("ab a<eos>") == [3, 7, 8]
    assert tokenizer.decode([3, 7, 8]) == "ab a"
    assert tokenizer.eos_ids == (8,)


def test_user_defined_token_is_whole_but_not_special() -> None:
    values = _byte_level(**{"tokenizer.ggml.token_type": [1] * 8 + [4]})
    tokenizer = _build(values)
    assert tokenizer.encode("a<eos>") == [0, 8]
    assert tokenizer.decode([8]) == "<eos>"


@pytest.mark.parametrize(
    ("name", "expected"), [("gpt-2", [9, 4]), ("smollm", [4, 5, 4]), ("qwen2", [4, 5, 4])]
)
def test_digits_merge_only_where_the_cut_allows_it(name: str, expected: list[int]) -> None:
    tokens = [*_LETTERS, "12"]
    values = _byte_level(
        **{
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["a b", "1 2"],
            "tokenizer.ggml.token_type": [1] * 10,
        }
    )
    assert _build(values).encode("121") == expected


def test_llama3_takes_up_to_three_digits_and_bos() -> None:
    values = _byte_level(
        **{
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": [*_LETTERS, "12", "121"],
            "tokenizer.ggml.merges": ["1 2"],
            "tokenizer.ggml.token_type": [1] * 8 + [3, 1, 1],
            "tokenizer.ggml.bos_token_id": 8,
        }
    )
    # "121" has no merge, but words of the vocabulary are taken whole.
    assert _build(values).encode("1211") == [8, 10, 4]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (_byte_level(**{"tokenizer.ggml.model": "bert"}), "'bert'; supported: gpt2, llama"),
        (_byte_level(**{"tokenizer.ggml.pre": "tekken"}), "'tekken'.*supported: gpt-2, smollm"),
        (_byte_level(**{"tokenizer.ggml.merges": ["ab"]}), "'ab', not a pair"),
        (_byte_level(**{"tokenizer.ggml.merges": ["a z"]}), "tokenizer: "),
        (_byte_level(**{"tokenizer.ggml.tokens": ["a", "a"]}), "a token twice"),
        (_byte_level(**{"tokenizer.ggml.token_type": [1]}), "one for each token"),
        (_byte_level(**{"tokenizer.ggml.eos_token_id": 99}), "`tokenizer.ggml.eos_token_id` is 99"),
        (_byte_level(**{"tokenizer.chat_template": "{% if %}"}), "chat template, line 1"),
        (_sentencepiece(**{"tokenizer.ggml.scores": [1.0]}), "one for each token"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason) as caught:
        gguf_tokenizer(Fields(values, "model.gguf"))
    assert str(caught.value).startswith("model.gguf")


def test_refusals_are_tokenizer_errors() -> None:
    with pytest.raises(TokenizerError):
        _build(_byte_level(**{"tokenizer.ggml.pre": "tekken"}))
