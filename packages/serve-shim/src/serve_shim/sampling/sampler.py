"""Owns the choice of one token per row of logits; refuses to let one row affect another."""

from typing import NamedTuple

import torch

import ir_core as ir
from serve_shim.engine.output import TokenLogprobs
from serve_shim.sampling.logprobs import token_logprobs
from serve_shim.sampling.table import NO_LOGPROBS, SamplingTable


class Sampled(NamedTuple):
    """The tokens of a step, one per row.

    A row whose logits have no usable maximum (NaN, infinite, all masked) has a negative token.
    `logprobs` is None when no row asked for them.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None


class Sampler:
    """Chooses tokens for sequences whose parameters are in `table`."""

    def __init__(self, table: SamplingTable) -> None:
        self._table = table

    def sample(self, logits_NV: torch.Tensor, slots: list[int], positions: torch.Tensor) -> Sampled:
        """Choose one token per row.

        `logits_NV` is [N, vocab] in any float dtype and is not modified; `slots` are the table's
        of the N rows, `positions` [N] int64 those that the tokens will take.
        """
        params = self._table.gather(slots)
        token_ids: list[int] = ir.ops.sample_tokens(
            self._edited(logits_NV, slots) if params.has_rules else logits_NV,
            params.temperature,
            params.min_p,
            params.top_k,
            params.top_p,
            params.key,
            positions,
        ).tolist()
        if params.num_logprobs is None:
            return Sampled(token_ids, None)
        return Sampled(token_ids, _logprobs(logits_NV, token_ids, params.num_logprobs))

    def _edited(self, logits_NV: torch.Tensor, slots: list[int]) -> torch.Tensor:
        """A float32 copy of the logits after the rules of these slots."""
        edited_NV = logits_NV.to(torch.float32, copy=True)
        self._table.edit(edited_NV.numpy(), slots)
        return edited_NV


def _logprobs(
    logits_NV: torch.Tensor, token_ids: list[int], counts: list[int]
) -> list[TokenLogprobs | None]:
    """Entries for the rows that asked for them and have a token."""
    rows = [
        row
        for row, (token_id, count) in enumerate(zip(token_ids, counts, strict=True))
        if count != NO_LOGPROBS and token_id >= 0
    ]
    computed = token_logprobs(
        logits_NV[rows].float().numpy(),
        [token_ids[row] for row in rows],
        [counts[row] for row in rows],
    )
    entries: list[TokenLogprobs | None] = [None] * len(token_ids)
    for row, entry in zip(rows, computed, strict=True):
        entries[row] = entry
    return entries
