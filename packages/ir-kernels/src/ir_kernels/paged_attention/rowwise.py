"""`paged_attention` for batch invariance: a token gets the same bits in every batch and chunk.

Shapes: H key heads, L keys, D head size.
"""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_core.ops.paged_cache import gather_exact, write_tokens


def register(op: IrOp) -> None:
    """Register provider `rowwise`; opaque, since it reads lengths."""
    op.register_impl("rowwise", opaque=True, batch_invariant=True)(paged_attention)


def paged_attention(
    x_query: Tensor,
    x_key: Tensor,
    x_value: Tensor,
    output: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    slot_mapping: Tensor,
    scale: float,
    sliding_window: int | None = None,
) -> None:
    """Each query token alone over exactly the keys that it sees."""
    write_tokens(x_key, x_value, kv_cache, slot_mapping)
    starts: list[int] = query_start_loc.tolist()
    for request, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        end = starts[request + 1]
        for row in range(starts[request], end):
            visible = length - (end - 1 - row)
            oldest = 0 if sliding_window is None else max(0, visible - sliding_window)
            kv_2HLD = gather_exact(kv_cache, block_table[request], oldest, visible)
            output[row] = _attend(x_query[row], kv_2HLD, scale)


def _attend(query: Tensor, kv_2HLD: Tensor, scale: float) -> Tensor:
    """One token; the query heads of a key head are rows of one matrix, so nothing is masked."""
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = kv_2HLD.to(wide)
    # A copy, since the order of a library's sum may depend on where in a cache line a row starts.
    grouped = query.to(wide, copy=True).view(key.shape[0], -1, key.shape[-1])
    weights = torch.softmax(grouped @ key.mT * scale, dim=-1)
    return (weights @ value).view(query.shape)
