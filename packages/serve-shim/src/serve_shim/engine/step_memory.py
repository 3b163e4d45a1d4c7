"""Owns the tensors that carry a step into the model; refuses to allocate any once it is made.

The model sees slices of the same memory on every step, which is what graph capture needs, and what
lies beyond a step is padding that it may compute without harm: token 0 at position 0, in no slot of
the cache, and sequences of no tokens.
"""

from typing import NamedTuple

import torch

from serve_shim.engine.config import EngineConfig
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


class StepMemory:
    """Static inputs for up to `max_step_tokens` tokens of up to `max_num_seqs` sequences.

    `whole` is all of it, of which every step is the first part, padding after it; `host` the same
    memory for whoever writes a step.
    """

    def __init__(self, config: EngineConfig) -> None:
        num_tokens, num_rows = config.max_step_tokens, config.max_num_seqs
        self.whole = StepInputs(
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
        self.host = HostViews(self.whole)
        # Of the last step; what lies beyond is padding.
        self.num_rows = self.num_tokens = 0
        self._decode_slices: dict[int, StepInputs] = {}

    def finish(self, num_rows: int, num_tokens: int) -> StepInputs:
        """The slices that hold the step that was written, all that a larger one left made padding.

        Starts beyond the step must be written with it. The slices are valid until the next step.
        """
        self._pad(num_rows, num_tokens)
        if num_rows != num_tokens:
            return self.whole.first(num_rows, num_tokens)
        known = self._decode_slices.get(num_rows)
        if known is None:
            known = self._decode_slices[num_rows] = self.whole.first(num_rows, num_rows)
        return known

    def _pad(self, num_rows: int, num_tokens: int) -> None:
        host = self.host
        if num_tokens < self.num_tokens:
            stale = slice(num_tokens, self.num_tokens)
            host.ids[stale] = host.positions[stale] = 0
            host.mapping[stale] = -1
        if num_rows < self.num_rows:
            host.lengths[num_rows : self.num_rows] = 0
        self.num_rows, self.num_tokens = num_rows, num_tokens


class HostViews:
    """The memory of a step's tensors as numpy arrays, and as cells that are written singly."""

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
