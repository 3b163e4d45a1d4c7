"""Owns how single tokens look on the wire, in both shapes of logprobs; refuses NaN and -inf."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serve_shim.engine.output import TokenLogprobs

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer

_MIN_LOGPROB = -9999.0


class TokenText:
    """Turns ids into the strings of logprobs: their text, or `token_id:ID` where asked for."""

    def __init__(self, tokenizer: "Tokenizer | None", *, as_ids: bool = False) -> None:
        self._tokenizer = None if as_ids else tokenizer

    def __call__(self, token_id: int) -> str:
        """The string that stands for one token."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)

    def utf8(self, token_id: int) -> list[int]:
        """The bytes that the token adds to the text."""
        if self._tokenizer is None:
            return list(self(token_id).encode())
        return list(self._tokenizer.token_bytes(token_id))


def finite(logprob: float) -> float:
    """The logprob, -9999 where it has no JSON number."""
    return max(logprob, _MIN_LOGPROB) if not math.isnan(logprob) else _MIN_LOGPROB


def chat_logprobs(entries: Sequence[TokenLogprobs], text: TokenText, top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice: the chosen tokens with at most `top`+1 alternatives."""
    return {"content": [_chat_entry(entry, text, top) for entry in entries]}


def _chat_entry(entry: TokenLogprobs, text: TokenText, top: int) -> dict[str, Any]:
    alternatives = entry.top if top else ()
    return {
        **_candidate(entry.token_id, entry.logprob, text),
        "top_logprobs": [_candidate(other.token_id, other.logprob, text) for other in alternatives],
    }


def _candidate(token_id: int, logprob: float, text: TokenText) -> dict[str, Any]:
    return {"token": text(token_id), "logprob": finite(logprob), "bytes": text.utf8(token_id)}


def completion_logprobs(
    token_ids: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    text: TokenText,
    offset: int,
) -> dict[str, Any]:
    """The `logprobs` of a completion: four lists; an entry of None has no logprob (first token).

    `offset` is the place of the first token in the choice's text, in characters.
    """
    tokens = [text(token_id) for token_id in token_ids]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
        "top_logprobs": [entry and _best_per_text(entry, text) for entry in entries],
        "text_offset": offsets,
    }


def _best_per_text(entry: TokenLogprobs, text: TokenText) -> dict[str, float]:
    best: dict[str, float] = {}
    for other in entry.top:
        token = text(other.token_id)
        best[token] = max(finite(other.logprob), best.get(token, -math.inf))
    return best


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None], text: TokenText
) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` of a choice: per token, id -> logprob, rank and text."""
    return [
        entry
        and {
            str(other.token_id): {
                "logprob": finite(other.logprob),
                "rank": other.rank,
                "decoded_token": text(other.token_id),
            }
            for other in entry.top
        }
        for entry in entries
    ]
