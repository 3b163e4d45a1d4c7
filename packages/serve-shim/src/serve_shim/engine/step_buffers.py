"""Owns the tensors that carry a step into the model; refuses to allocate any once it is made.

The model sees slices of the same memory on every step, which is what graph capture needs.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_plan import StepPlan
from serve_shim.models.attention_step import AttentionStep


class StepInputs(NamedTuple):
    """What one step feeds the model: T tokens of R sequences.

    `last_rows` [R] int64 is the row of each sequence's last token in this step, `slots` [R] int64
    its slot, `ends` [R] int64 the number of its tokens that the cache holds after the step.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionStep
    last_rows: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.int64]) -> "StepInputs":
        """The same step with the host's arrays reduced to these sequences."""
        return self._replace(
            last_rows=self.last_rows[rows], slots=self.slots[rows], ends=self.ends[rows]
        )


class StepBuffers:
    """Static inputs for up to `max_step_tokens` tokens of up to `max_num_seqs` sequences."""

    def __init__(self, config: EngineConfig) -> None:
        num_tokens, num_rows = config.max_step_tokens, config.max_num_seqs
        self._block_size = config.block_size
        self._input_ids = torch.zeros(num_tokens, dtype=torch.int64)
        self._positions = torch.zeros(num_tokens, dtype=torch.int64)
        self._step = AttentionStep(
            block_table=torch.zeros(num_rows, config.max_blocks_per_sequence, dtype=torch.int32),
            seq_lens=torch.zeros(num_rows, dtype=torch.int32),
            query_start_loc=torch.zeros(num_rows + 1, dtype=torch.int32),
            slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64),
        )
        # numpy views of the same memory: its gathers cost a fraction of torch's at these sizes.
        self._host_ids = self._input_ids.numpy()
        self._host_positions = self._positions.numpy()
        self._host_blocks = self._step.block_table.numpy()
        self._host_seq_lens = self._step.seq_lens.numpy()
        self._host_starts = self._step.query_start_loc.numpy()
        self._host_mapping = self._step.slot_mapping.numpy()

    def fill(self, plan: StepPlan, table: SlotTable) -> StepInputs:
        """Write a step and return the slices that hold it, valid until the next call."""
        slots = np.array([sequence.slot for sequence in plan.sequences], dtype=np.int64)
        starts = np.array([sequence.num_computed for sequence in plan.sequences], dtype=np.int64)
        lengths = np.array(plan.lengths, dtype=np.int64)
        end_rows = np.cumsum(lengths)
        if len(slots) == plan.num_tokens:
            self._fill_tokens(slots, starts, table)
        else:
            row_of_token = np.repeat(np.arange(len(slots)), lengths)
            offsets = starts + lengths - end_rows
            positions = np.arange(plan.num_tokens) + offsets[row_of_token]
            self._fill_tokens(slots[row_of_token], positions, table)
        ends = starts + lengths
        self._fill_rows(slots, ends, end_rows, table)
        return self._slices(plan, slots, ends, end_rows - 1)

    def _fill_tokens(
        self,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        table: SlotTable,
    ) -> None:
        num_tokens = len(positions)
        self._host_ids[:num_tokens] = table.token_ids[slots, positions]
        self._host_positions[:num_tokens] = positions
        place, offset = np.divmod(positions, self._block_size)
        blocks = table.blocks[slots, place].astype(np.int64)
        np.add(blocks * self._block_size, offset, out=self._host_mapping[:num_tokens])

    def _fill_rows(
        self,
        slots: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        end_rows: npt.NDArray[np.int64],
        table: SlotTable,
    ) -> None:
        num_rows = len(slots)
        np.take(table.blocks, slots, axis=0, out=self._host_blocks[:num_rows])
        self._host_seq_lens[:num_rows] = ends
        self._host_starts[1 : num_rows + 1] = end_rows

    def _slices(
        self,
        plan: StepPlan,
        slots: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        last_rows: npt.NDArray[np.int64],
    ) -> StepInputs:
        num_rows, num_tokens = len(slots), plan.num_tokens
        step = AttentionStep(
            block_table=self._step.block_table[:num_rows],
            seq_lens=self._step.seq_lens[:num_rows],
            query_start_loc=self._step.query_start_loc[: num_rows + 1],
            slot_mapping=self._step.slot_mapping[:num_tokens],
        )
        return StepInputs(
            input_ids=self._input_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            attention=step,
            last_rows=last_rows,
            slots=slots,
            ends=ends,
        )
