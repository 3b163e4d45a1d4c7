"""Owns the choice of one token per row of logits; refuses to let one row affect another.

Runs on the host in float32. Every operation here works on one row at a time, so that its result is
bitwise the same whatever the number of rows; a torch sum over a single row, for one, is not.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from serve_shim.engine.output import TokenLogprobs
from serve_shim.sampling.logprobs import token_logprobs
from serve_shim.sampling.table import NO_LOGPROBS, SamplingTable
from serve_shim.sampling.truncation import truncate
from serve_shim.sampling.uniform import draw_uniform

_BLOCK = 256
"""Weights per partial sum of the cumulative distribution."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of a step, one per row.

    `failed` marks rows whose logits had no usable maximum (NaN, infinite, all masked); their
    token means nothing. `logprobs` is None when no row asked for them.
    """

    token_ids: npt.NDArray[np.int64]
    failed: npt.NDArray[np.bool_]
    logprobs: list[TokenLogprobs | None] | None


class Sampler:
    """Chooses tokens for up to `max_rows` sequences whose parameters are in `table`."""

    def __init__(self, table: SamplingTable, max_rows: int, vocab_size: int) -> None:
        self._table = table
        self._vocab_size = vocab_size
        # Kept between steps: fresh allocations of this size cost page faults on every step. The
        # rows are padded to whole blocks with logits that no choice can fall on.
        width = vocab_size + -vocab_size % _BLOCK
        self._logits = torch.full((max_rows, width), -torch.inf, dtype=torch.float32)
        self._weights = torch.empty(0, width, dtype=torch.float32)

    def sample(
        self,
        logits_NV: torch.Tensor,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> Sampled:
        """Choose one token per row.

        `logits_NV` is [N, vocab] in any float dtype and is not modified; `slots` and `positions`
        are [N] int64, the table's slot of each row and the position that its token will take.
        """
        buffer = self._logits[: len(slots)]
        buffer[:, : self._vocab_size].copy_(logits_NV)
        rows_NW: npt.NDArray[np.float32] = buffer.numpy()
        if self._table.are_plain(slots):
            return Sampled(*_take_greedy(rows_NW), None)
        raw = self._raw_rows(rows_NW, slots)
        for row, slot in enumerate(slots.tolist()):
            rules = self._table.rules.get(slot)
            if rules is not None:
                rules.apply(rows_NW[row])
        token_ids, failed = self._choose(buffer, slots, positions)
        return Sampled(token_ids, failed, self._logprobs(raw, token_ids, failed, slots))

    def _choose(
        self,
        buffer_NW: torch.Tensor,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        is_random = ~self._table.is_greedy[slots]
        if is_random.all():
            return self._draw(buffer_NW, slots, positions)
        token_ids, failed = _take_greedy(buffer_NW.numpy())
        if is_random.any():
            drawn = self._draw(
                buffer_NW[torch.from_numpy(is_random)], slots[is_random], positions[is_random]
            )
            token_ids[is_random], failed[is_random] = drawn
        return token_ids, failed

    def _draw(
        self,
        logits_MW: torch.Tensor,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Draw from the softmax of each row; overwrites `logits_MW`."""
        table = self._table
        logits_MW.div_(torch.from_numpy(table.temperature[slots])[:, None])
        weights_MW = self._softmax(logits_MW)
        for place in np.flatnonzero(table.is_truncated[slots]).tolist():
            slot = slots[place]
            truncate(
                weights_MW[place],
                min_p=float(table.min_p[slot]),
                top_k=int(table.top_k[slot]),
                top_p=float(table.top_p[slot]),
            )
        return _invert_cdf(weights_MW, draw_uniform(table.keys[slots], positions))

    def _softmax(self, logits_MW: torch.Tensor) -> npt.NDArray[np.float32]:
        """Softmax row by row, in memory that is kept between steps."""
        if len(logits_MW) > len(self._weights):
            self._weights = torch.empty_like(logits_MW)
        weights_MW = self._weights[: len(logits_MW)]
        torch.softmax(logits_MW, dim=-1, out=weights_MW)
        return weights_MW.numpy()

    def _raw_rows(
        self, rows_NW: npt.NDArray[np.float32], slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32] | None:
        """A copy of the rows that want logprobs, made before any rule edits them."""
        wanted = self._table.num_logprobs[slots] != NO_LOGPROBS
        return rows_NW[wanted, : self._vocab_size] if wanted.any() else None

    def _logprobs(
        self,
        raw: npt.NDArray[np.float32] | None,
        token_ids: npt.NDArray[np.int64],
        failed: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int64],
    ) -> list[TokenLogprobs | None] | None:
        if raw is None:
            return None
        counts = self._table.num_logprobs[slots]
        wanted = np.flatnonzero(counts != NO_LOGPROBS)
        is_usable = ~failed[wanted]
        rows = wanted[is_usable]
        computed = token_logprobs(raw[is_usable], token_ids[rows].tolist(), counts[rows].tolist())
        entries: list[TokenLogprobs | None] = [None] * len(slots)
        for row, entry in zip(rows.tolist(), computed, strict=True):
            entries[row] = entry
        return entries


def _take_greedy(
    rows_NW: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The first largest entry of each row; a NaN counts as largest, so it is found here."""
    token_ids = rows_NW.argmax(axis=-1)
    return token_ids, ~np.isfinite(rows_NW[np.arange(len(rows_NW)), token_ids])


def _invert_cdf(
    weights_MW: npt.NDArray[np.float32], uniform: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The token at quantile `uniform` of each row's weights, found by block, then inside it."""
    blocks = weights_MW.reshape(len(weights_MW), -1, _BLOCK)
    mass = np.cumsum(np.add.reduce(blocks, axis=-1), axis=-1, dtype=np.float64)
    token_ids = np.zeros(len(weights_MW), np.int64)
    failed = ~(np.isfinite(mass[:, -1]) & (mass[:, -1] > 0.0))
    for row in np.flatnonzero(~failed).tolist():
        token_ids[row] = _quantile(blocks[row], mass[row], uniform[row] * mass[row, -1])
    return token_ids, failed


def _quantile(blocks: npt.NDArray[np.float32], mass: npt.NDArray[np.float64], target: float) -> int:
    block = int(np.searchsorted(mass, target, side="right"))
    before = mass[block - 1] if block else 0.0
    inside = np.cumsum(blocks[block], dtype=np.float64)
    place = int(np.searchsorted(inside, target - before, side="right"))
    # The block's float32 sum may exceed its float64 running sum by a rounding: then the last
    # token of the block that has any weight is meant.
    if place == _BLOCK:
        place = int(np.flatnonzero(blocks[block])[-1])
    return block * _BLOCK + place
