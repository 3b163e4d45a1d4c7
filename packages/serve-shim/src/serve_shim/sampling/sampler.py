"""Owns the choice of one token per row of logits; refuses to let one row affect another."""

from typing import NamedTuple

import torch

import ir_core as ir
from serve_shim.engine.output import TokenLogprobs
from serve_shim.sampling.logprobs import token_logprobs
from serve_shim.sampling.table import NO_LOGPROBS, BatchParams, EditedRows, SamplingTable


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
        token_ids = _choose(logits_NV, params, positions)
        if params.edited is not None:
            self._choose_edited(token_ids, logits_NV, params.edited, positions)
        if params.num_logprobs is None:
            return Sampled(token_ids, None)
        return Sampled(token_ids, _logprobs(logits_NV, token_ids, params.num_logprobs))

    def _choose_edited(
        self,
        token_ids: list[int],
        logits_NV: torch.Tensor,
        edited: EditedRows,
        positions: torch.Tensor,
    ) -> None:
        """Choose again, in place, for the rows that have rules, from float32 copies."""
        logits_MV = logits_NV[edited.rows].float()
        self._table.edit(logits_MV.numpy(), edited.slots)
        chosen = _choose(logits_MV, edited.params, positions[edited.rows])
        for row, token_id in zip(edited.rows, chosen, strict=True):
            token_ids[row] = token_id


def _choose(logits_NV: torch.Tensor, params: BatchParams, positions: torch.Tensor) -> list[int]:
    return ir.ops.sample_tokens(
        logits_NV,
        params.temperature,
        params.min_p,
        params.top_k,
        params.top_p,
        params.key,
        positions,
    ).tolist()


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
