"""JSON from strangers: everything ambiguous is refused with words, ordinary JSON is not."""

import json

import pytest

from serve_shim.errors import RequestError
from serve_shim.server.strict_json import MAX_DEPTH, loads_object


def nested(depth: int) -> bytes:
    """An object that is `depth` containers deep."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e400}', "1e400"),
        (b'{"a": -1e400}', "-1e400"),
        (b'{"a": ' + b"9" * 21 + b"}", "21 digits"),
        (b'{"a": ' + b"9" * 5_000_000 + b"}", "5000000 digits"),
        (b'{"a": 1, "a": 2}', "`a` stands twice"),
        (b'{"b": {"a": 1, "c": 0, "a": 2}}', "`a` stands twice"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        (b'{"a": 1', "line 1 column"),
        (b"", "Expecting value"),
        (b"[]", "an array"),
        (b'"x"', "a string"),
        (b"3", "a number"),
        (b"null", "null"),
        (b"true", "a boolean"),
        (nested(MAX_DEPTH + 1), "deeper than"),
        (nested(2000), "deeper than"),
        (b"[" * 2000, "deeper than"),
        (b'{"a": "\x01"}', "control character"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_loads_object_refuses(data: bytes, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        loads_object(data)
    assert words in caught.value.message
    assert caught.value.code == "invalid_json"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, -2, 3.5, True, False, None, "é", "😀", "\u2028"]},
        {"seed": 2**64 - 1, "low": -(2**63)},
        {"text": "1234567890" * 1000},
    ],
)
def test_loads_object_reads_ordinary_json(value: dict[str, object]) -> None:
    assert loads_object(json.dumps(value).encode()) == value
    assert loads_object(json.dumps(value, ensure_ascii=False).encode()) == value


def test_loads_object_reads_the_deepest_nest_it_allows() -> None:
    assert "a" in loads_object(nested(MAX_DEPTH))
