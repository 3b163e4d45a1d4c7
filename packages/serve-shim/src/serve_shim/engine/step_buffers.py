"""Owns how a plan becomes the inputs of a step; refuses to allocate memory for it.

Steps in which every sequence has one token are written cell by cell: after a model has swept the
caches, a short loop costs a fraction of a dozen calls into numpy.
"""

from collections.abc import Sequence as Values

import numpy as np

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.request import Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_memory import StepInputs, StepMemory
from serve_shim.engine.step_plan import StepPlan


class StepBuffers:
    """Writes steps into memory of its own."""

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size
        self._memory = StepMemory(config)
        self._host = self._memory.host
        num_rows = config.max_num_seqs
        self._rows = np.arange(num_rows + 1)
        # For each row the block list that the table holds of it, and how many of its entries.
        self._held: list[list[int] | None] = [None] * num_rows
        self._num_held = [0] * num_rows
        self._has_one_token_each = True

    @property
    def whole(self) -> StepInputs:
        """All of the memory, of which every step is the first part, padding after it."""
        return self._memory.whole

    def fill(self, plan: StepPlan, table: SlotTable) -> StepInputs:
        """Write a step and return the slices that hold it, valid until the next call."""
        num_rows, num_tokens = len(plan.sequences), plan.num_tokens
        if num_rows == num_tokens:
            self._fill_single(plan.sequences)
        else:
            self._fill_mixed(plan, table)
        return self._memory.finish(num_rows, num_tokens)

    def _fill_single(self, sequences: Values[Sequence]) -> None:
        """A step with one token of each sequence."""
        host, size, num_rows = self._host, self._block_size, len(sequences)
        if not self._has_one_token_each or num_rows != self._memory.num_rows:
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
