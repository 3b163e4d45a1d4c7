"""Owns a vocabulary of which each rank holds some token ids; refuses to know what ids mean."""

from torch import Tensor

import ir_core as ir
from serve_shim.models.matrix import Matrix
from serve_shim.models.rank_columns import join_columns


def embed_shard(table: Matrix, input_ids: Tensor, first_id: Tensor, num_ids: int) -> Tensor:
    """Embeddings [T, hidden] of int64 `input_ids` [T], of which this rank holds some rows.

    `table` has those of `num_ids` ids from `first_id`, an int64 tensor [1], on.
    """
    wanted = input_ids - first_id
    held = wanted.clamp(0, num_ids - 1)
    rows = table.embed(held).masked_fill((held != wanted).unsqueeze(-1), 0)
    return ir.ops.all_reduce(rows, "tp")


def join_logits(logits: Tensor, num_ranks: int, vocab_size: int) -> Tensor:
    """Logits [N, vocab_size] of all ranks, given this rank's [N, width]; padding is cut off."""
    width = logits.shape[1]
    starts = [rank * width for rank in range(num_ranks)]
    return join_columns(logits, [max(0, min(width, vocab_size - start)) for start in starts])
