"""Owns whether a request can ever be served; refuses what no state of the engine would allow.

Everything that a model, a sampler or a tokenizer could stumble over is checked here, on the
caller's side, so that a bad request fails alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from serve_shim.errors import RequestError, SamplingParamsError
from serve_shim.sampling.params import SamplingParams


class Admission:
    """The limits of one engine: `vocab_size` is the width of the logits."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        max_sequences: int | None,
        has_tokenizer: bool,
    ) -> None:
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_sequences = max_sequences
        self._has_tokenizer = has_tokenizer

    def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise `RequestError` if the prompt or the parameters cannot be served."""
        self._check_prompt(prompt_token_ids)
        self._check_length(len(prompt_token_ids), params)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", tuple(params.logit_bias or ()))
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            if wanted is not None and wanted > self._vocab_size:
                raise SamplingParamsError(
                    f"`{name}` ({wanted}) exceeds the vocabulary of {self._vocab_size}", param=name
                )
        if params.stop_strings and not self._has_tokenizer:
            raise SamplingParamsError(
                "`stop` needs a tokenizer, which this model has not; use `stop_token_ids`",
                param="stop",
            )
        if self._max_sequences is not None and params.n > self._max_sequences:
            raise SamplingParamsError(
                f"`n` ({params.n}) exceeds the {self._max_sequences} sequences that this engine "
                "can hold",
                param="n",
            )

    def max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """How many tokens a valid request may generate per completion."""
        room = self._max_model_len - num_prompt_tokens
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _check_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        if len(prompt_token_ids) == 0:
            raise RequestError(
                "the prompt is empty; it needs at least one token",
                param="prompt",
                code="empty_prompt",
            )
        if len(prompt_token_ids) > self._max_model_len:
            return  # _check_length has the better words, and no need to copy the ids.
        ids = np.asarray(prompt_token_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError(
                "the prompt must be a flat list of token ids (integers)",
                param="prompt",
                code="invalid_token_id",
            )
        self._check_ids("prompt", (int(ids.min()), int(ids.max())))

    def _check_length(self, num_prompt_tokens: int, params: SamplingParams) -> None:
        wanted = params.max_tokens
        asked = max(wanted if wanted is not None else 1, params.min_tokens)
        if num_prompt_tokens + asked <= self._max_model_len:
            return
        raise RequestError(
            f"this model's context is {self._max_model_len} tokens, but the request needs "
            f"{num_prompt_tokens + asked}: {num_prompt_tokens} in the prompt and "
            f"{_shown(asked)} to generate; shorten the prompt or lower `max_tokens`",
            param="prompt" if num_prompt_tokens >= self._max_model_len else "max_tokens",
            code="context_length_exceeded",
        )

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"`{name}` has token id {_shown(token_id)}, outside the vocabulary of "
                    f"{self._vocab_size} (0 to {self._vocab_size - 1})",
                    param=name,
                    code="invalid_token_id",
                )


def _shown(number: int) -> str:
    """The number, or its magnitude where its digits would swamp the message."""
    return str(number) if abs(number) < 10**20 else f"about 1e{int(math.log10(abs(number)))}"
