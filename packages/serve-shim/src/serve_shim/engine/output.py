"""Owns what the engine hands back for a request; refuses wire formats, which are the server's.

Nobody changes them, but one of each is made for every token of every stream, and freezing a
dataclass makes that four times as expensive.
"""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate: its natural-log probability and its 1-based rank in the vocabulary."""

    token_id: int
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token's logprob and the likeliest candidates, most likely first.

    `top` always contains the chosen token, with the same float as `logprob`; it is appended last
    when it is not among the number of candidates that was asked for.
    """

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class CompletionDelta:
    """What completion `index` gained since the last delta.

    `logprobs` has one entry per token of `token_ids`. `text` may lag behind the tokens while a
    UTF-8 sequence or a possible stop string is open. `finish_reason` is set on the last delta;
    `stop_reason` is then the stop string or stop token id, None for end-of-sequence and length.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """One delivery to a request's consumer: at most one delta per completion.

    `prompt_logprobs` is in the first output only, where asked for: one entry per prompt token,
    the first None. `num_cached_tokens` counts prompt tokens whose KV entries were reused.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    deltas: tuple[CompletionDelta, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    num_cached_tokens: int = 0
    finished: bool = False
