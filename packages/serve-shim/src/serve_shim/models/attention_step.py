"""Owns what one step tells attention about its requests."""

from typing import NamedTuple

from torch import Tensor


class AttentionStep(NamedTuple):
    """Slices of the engine's static step buffers, for R requests and T tokens.

    `block_table` int32 [R, max_blocks]; `seq_lens` int32 [R], the new tokens included;
    `query_start_loc` int32 [R + 1]; `slot_mapping` int64 [T], -1 for padding.
    """

    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    slot_mapping: Tensor
