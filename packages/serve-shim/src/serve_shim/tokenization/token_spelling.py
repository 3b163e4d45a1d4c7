"""Owns the bytes that a token of a vocabulary stands for; refuses unknown spellings."""

import functools
import json
import re
from collections.abc import Callable

import tokenizers

from serve_shim.errors import TokenizerError

Spelling = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def spelling_of(backend: tokenizers.Tokenizer, where: str) -> Spelling:
    """Return how `backend` spells its tokens, by the decoder it has.

    Raises `TokenizerError` for decoders other than byte-level and SentencePiece-like ones.
    """
    kinds = _decoder_kinds(backend)
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return sentencepiece_bytes
    found = ", ".join(sorted(kinds)) or "none"
    raise TokenizerError(
        f"{where}: decoder {found} is not supported; supported: byte-level and SentencePiece"
    )


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a token in GPT-2's alphabet of printable stand-ins."""
    table = _byte_level_table()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode("utf-8", "replace")


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a token where U+2581 is a space and `<0xAB>` one byte."""
    match = _BYTE_TOKEN.fullmatch(token)
    if match is not None:
        return bytes([int(match.group(1), 16)])
    return token.replace("\u2581", " ").encode("utf-8", "replace")


@functools.cache
def _byte_level_table() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def _decoder_kinds(backend: tokenizers.Tokenizer) -> set[str]:
    if backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    parts = state.get("decoders", [state])
    return {part["type"] for part in parts}
