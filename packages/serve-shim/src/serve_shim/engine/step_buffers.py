"""Owns the tensors that carry a step into the model; refuses to allocate any once it is made.

The model sees slices of the same memory on every step, which is what graph capture needs, and what
lies beyond a step is padding that it may compute without harm: token 0 at position 0, in no slot of
the cache, and sequences of no tokens. Steps in which every sequence has one token are written cell
by cell: after a model has swept the caches, a short loop costs a fraction of a dozen calls into
numpy.
"""

from collections.abc import Sequence as Values
from typing import NamedTuple

import numpy as np
import torch

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_plan import StepPlan
from serve_shim.models.attention_step import AttentionStep


class StepInputs(NamedTuple):
    """What one step feeds the model: T tokens of R sequences.

    `last_rows` [R] int64 is the row of each sequence's last token in this step, `ends` [R] int64
    the number of its tokens that the cache holds after the step.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionStep
    last_rows: torch.Tensor
    ends: torch.Tensor

    def take(self, rows: list[int]) -> "StepInputs":
        """The same step with `last_rows` and `ends` reduced to these sequences."""
        return self._replace(last_rows=self.last_rows[rows], ends=self.ends[rows])

    def first(self, num_rows: int, num_tokens: int) -> "StepInputs":
        """The part that holds so many sequences and tokens, in the same memory."""
        attention = self.attention
        return StepInputs(
            input_ids=self.input_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            attention=AttentionStep(
                block_table=attention.block_table[:num_rows],
                seq_lens=attention.seq_lens[:num_rows],
                query_start_loc=attention.query_start_loc[: num_rows + 1],
                slot_mapping=attention.slot_mapping[:num_tokens],
            ),
            last_rows=self.last_rows[:num_rows],
            ends=self.ends[:num_rows],
        )


class StepBuffers:
    """Static inputs for up to `max_step_tokens` tokens of up to `max_num_seqs` sequences."""

    def __init__(self, config: EngineConfig) -> None:
        num_tokens, num_rows = config.max_step_tokens, config.max_num_seqs
        self._block_size = config.block_size
        self._tensors = StepInputs(
            input_ids=torch.zeros(num_tokens, dtype=torch.int64),
            positions=torch.zeros(num_tokens, dtype=torch.int64),
            attention=AttentionStep(
                block_table=torch.zeros(
                    num_rows, config.max_blocks_per_sequence, dtype=torch.int32
                ),
                seq_lens=torch.zeros(num_rows, dtype=torch.int32),
                query_start_loc=torch.zeros(num_rows + 1, dtype=torch.int32),
                slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64),
            ),
            last_rows=torch.arange(num_rows),
            ends=torch.zeros(num_rows, dtype=torch.int64),
        )
        self._host = _HostViews(self._tensors)
        self._rows = np.arange(num_rows + 1)
        # For each row the block list that the table holds of it, and how many of its entries.
        self._held: list[list[int] | None] = [None] * num_rows
        self._num_held = [0] * num_rows
        self._has_one_token_each = True
        self._decode_slices: dict[int, StepInputs] = {}
        # Of the last step; what lies beyond is padding.
        self._num_rows = self._num_tokens = 0

    @property
    def whole(self) -> StepInputs:
        """All of the memory, of which every step is the first part, padding after it."""
        return self._tensors

    def fill(self, plan: StepPlan, table: SlotTable) -> StepInputs:
        """Write a step and return the slices that hold it, valid until the next call."""
        num_rows, num_tokens = len(plan.sequences), plan.num_tokens
        if num_rows != num_tokens:
            self._fill_mixed(plan, table)
            self._pad(num_rows, num_tokens)
            return self._tensors.first(num_rows, num_tokens)
        self._fill_single(plan.sequences)
        self._pad(num_rows, num_tokens)
        known = self._decode_slices.get(num_rows)
        if known is None:
            known = self._decode_slices[num_rows] = self._tensors.first(num_rows, num_rows)
        return known

    def _pad(self, num_rows: int, num_tokens: int) -> None:
        """Make padding of what a larger step left; starts are written with the step."""
        host = self._host
        if num_tokens < self._num_tokens:
            stale = slice(num_tokens, self._num_tokens)
            host.ids[stale] = host.positions[stale] = 0
            host.mapping[stale] = -1
        if num_rows < self._num_rows:
            host.lengths[num_rows : self._num_rows] = 0
        self._num_rows, self._num_tokens = num_rows, num_tokens

    def _fill_single(self, sequences: Values[Sequence]) -> None:
        """A step with one token of each sequence."""
        host, size, num_rows = self._host, self._block_size, len(sequences)
        if not self._has_one_token_each or num_rows != self._num_rows:
            host.starts[:] = np.minimum(self._rows, num_rows)
            host.last_rows[:] = self._rows[:-1]
            self._has_one_token_each = True
        for row, sequence in enumerate(sequences):
            position, blocks = sequence.num_computed, sequence.blocks
            host.id_cells[row] = sequence.token_at(position)
            host.position_cells[row] = position
            host.end_cells[row] = host.length_cells[row] = position + 1
            host.mapping_cells[row] = blocks[position // size] * size + position % size
            if self._held[row] is not blocks or self._num_held[row] != len(blocks):
                self._hold(row, blocks)

    def _hold(self, row: int, blocks: list[int]) -> None:
        known = self._num_held[row] if self._held[row] is blocks else 0
        self._host.blocks[row, known : len(blocks)] = blocks[known:]
        self._held[row], self._num_held[row] = blocks, len(blocks)

    def _fill_mixed(self, plan: StepPlan, table: SlotTable) -> None:
        """Any step."""
        host, num_rows, num_tokens = self._host, len(plan.sequences), plan.num_tokens
        slots = np.array([sequence.slot for sequence in plan.sequences], np.int64)
        starts = np.array([sequence.num_computed for sequence in plan.sequences], np.int64)
        lengths = np.array(plan.lengths, np.int64)
        end_rows, ends = np.cumsum(lengths), starts + lengths
        row_of_token = np.repeat(self._rows[:num_rows], lengths)
        positions = np.arange(num_tokens) + (ends - end_rows)[row_of_token]
        place, offset = np.divmod(positions, self._block_size)
        slots_of_tokens = slots[row_of_token]
        host.ids[:num_tokens] = table.token_ids[slots_of_tokens, positions]
        host.positions[:num_tokens] = positions
        blocks = table.blocks[slots_of_tokens, place].astype(np.int64)
        host.mapping[:num_tokens] = blocks * self._block_size + offset
        host.ends[:num_rows] = host.lengths[:num_rows] = ends
        host.starts[1 : num_rows + 1], host.last_rows[:num_rows] = end_rows, end_rows - 1
        host.starts[num_rows + 1 :] = num_tokens
        width = -(-int(ends.max()) // self._block_size)  # nothing beyond is ever read
        host.blocks[:num_rows, :width] = table.blocks[slots, :width]
        self._held[:num_rows] = [None] * num_rows
        self._has_one_token_each = False


class _HostViews:
    """The memory of the step's tensors as numpy arrays, and as cells that are written singly."""

    def __init__(self, tensors: StepInputs) -> None:
        self.ids = tensors.input_ids.numpy()
        self.positions = tensors.positions.numpy()
        self.blocks = tensors.attention.block_table.numpy()
        self.lengths = tensors.attention.seq_lens.numpy()
        self.starts = tensors.attention.query_start_loc.numpy()
        self.mapping = tensors.attention.slot_mapping.numpy()
        self.last_rows = tensors.last_rows.numpy()
        self.ends = tensors.ends.numpy()
        self.id_cells = self.ids.data
        self.position_cells = self.positions.data
        self.length_cells = self.lengths.data
        self.mapping_cells = self.mapping.data
        self.end_cells = self.ends.data
