"""Reads and writes of a paged cache [blocks, 2, H, S, D]. Knows slots and lengths; no attention.

Shapes: T tokens, R requests, H key heads, S block size, D head size, L keys.
"""

import torch
from torch import Tensor


def write_tokens(x_key: Tensor, x_value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Store `x_key` and `x_value` [T, H, D] at `slots` [T]; a slot of -1 is not written."""
    known: list[int] = slots.tolist()
    if not known:
        return
    if min(known) < 0:
        rows = [row for row, slot in enumerate(known) if slot >= 0]
        kept = torch.tensor(rows, dtype=torch.int64, device=slots.device)
        slots, x_key, x_value = slots[kept], x_key[kept], x_value[kept]
    block_size = kv_cache.shape[3]
    new = torch.stack((x_key, x_value), dim=1).to(kv_cache.dtype)
    by_slot = kv_cache.permute(0, 3, 1, 2, 4)
    by_slot.index_put_((slots // block_size, slots % block_size), new)


def gather_exact(kv_cache: Tensor, blocks: Tensor, oldest: int, length: int) -> Tensor:
    """Keys and values [2, H, L, D] at positions `oldest` to `length`."""
    block_size = kv_cache.shape[3]
    skipped = oldest // block_size
    used = blocks[skipped : -(-length // block_size)]
    gathered = kv_cache.index_select(0, used).permute(1, 2, 0, 3, 4).flatten(2, 3)
    return gathered[:, :, oldest - skipped * block_size : length - skipped * block_size]


def gather_padded(
    kv_cache: Tensor, table: Tensor, oldest: Tensor, lengths: Tensor, width: int
) -> Tensor:
    """Keys and values [R, 2, H, `width`, D] from position `oldest` on.

    A padded position repeats the request's last key: its weight is 0, and 0 times what an unused
    row of the cache may hold (NaN) would not be.
    """
    _, _, num_heads, block_size, head_size = kv_cache.shape
    position = torch.minimum(
        oldest[:, None] + torch.arange(width, device=lengths.device), lengths[:, None] - 1
    )
    block = table.gather(1, position // block_size).to(torch.int64)
    first_row = block * (2 * num_heads * block_size) + position % block_size
    head_row = torch.arange(2 * num_heads, device=lengths.device) * block_size
    rows = first_row[:, None, :] + head_row[:, None]
    gathered = kv_cache.reshape(-1, head_size).index_select(0, rows.flatten())
    return gathered.view(table.shape[0], 2, num_heads, width, head_size)
