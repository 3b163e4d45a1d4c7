"""Owns log-probabilities of the raw logits; refuses to see temperature, penalties or masks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from serve_shim.engine.output import TokenLogprob, TokenLogprobs

_FEW = 32
"""Up to this many maxima are found one by one: an argmax costs 1/100 of a sort."""


def token_logprobs(
    logits_NV: npt.NDArray[np.float32],
    token_ids: Sequence[int],
    num_top: Sequence[int],
) -> list[TokenLogprobs]:
    """The logprobs of one chosen token per row, with its `num_top` likeliest alternatives.

    `logits_NV` are raw float32 logits, not modified. The log-softmax is taken row by row, so an
    entry does not depend on the other rows.
    """
    logprobs_NV = torch.log_softmax(torch.from_numpy(logits_NV), dim=-1).numpy()
    return [_entry(*row) for row in zip(logprobs_NV, token_ids, num_top, strict=True)]


def _entry(logprobs_V: npt.NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    chosen = logprobs_V[token_id]
    value = float(chosen)
    rank = int(np.count_nonzero(logprobs_V > chosen)) + 1
    top = [
        TokenLogprob(candidate, float(logprobs_V[candidate]), place + 1)
        for place, candidate in enumerate(_likeliest(logprobs_V, num_top))
    ]
    if all(candidate.token_id != token_id for candidate in top):
        top.append(TokenLogprob(token_id, value, rank))
    return TokenLogprobs(token_id, value, tuple(top))


def _likeliest(logprobs_V: npt.NDArray[np.float32], count: int) -> list[int]:
    """Ids of the `count` largest entries, largest first, the lower id first among equals."""
    if count > _FEW:
        return np.argsort(-logprobs_V, kind="stable")[:count].tolist()
    found: list[int] = []
    values: list[np.float32] = []
    for _ in range(min(count, logprobs_V.size)):
        best = int(logprobs_V.argmax())
        found.append(best)
        values.append(logprobs_V[best])
        logprobs_V[best] = -np.inf
    for token_id, value in zip(found, values, strict=True):
        logprobs_V[token_id] = value
    return found
