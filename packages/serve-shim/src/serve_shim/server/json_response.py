"""Owns how JSON leaves the server: compact, ASCII, never NaN.

ASCII because U+2028, U+0085 and lone surrogates inside a string then cannot break a client that
splits a stream into lines.
"""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

from starlette.responses import Response

_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """One line of ASCII; ValueError for NaN and infinities."""
    return _encoder.encode(value)


def quoted(text: str) -> str:
    """`to_json` of a text, without the encoder that it builds for each call."""
    return encode_basestring_ascii(text)


class JsonResponse(Response):
    """A response whose body is `value` as JSON."""

    media_type = "application/json"

    def __init__(
        self, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(to_json(value).encode("ascii"), status, headers)
