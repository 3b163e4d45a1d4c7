"""Owns the size and the memory of the KV cache; refuses to know who uses which block."""

from dataclasses import dataclass

import torch

from serve_shim.errors import SettingsError
from serve_shim.huge_pages import HUGE_PAGE, HugePages

DEFAULT_BYTES = 2**30
"""What the cache takes by default; more only where one context does not fit into it."""

_AVAILABLE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The shape of one block over all layers: keys and values of `block_size` tokens."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all layers together."""
        per_token = 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize
        return self.num_layers * self.block_size * per_token


def choose_num_blocks(
    layout: CacheLayout,
    *,
    max_num_seqs: int,
    max_model_len: int,
    memory_bytes: int | None,
    available_bytes: int,
) -> int:
    """How many blocks to allocate: what all sequences could use, within the memory bound.

    `memory_bytes` is the user's bound; without one it is 1 GiB or one full context, whichever
    is more, but no more than a share of `available_bytes`. Raises `SettingsError` when the bound
    holds no block.
    """
    per_context = -(-max_model_len // layout.block_size)
    bound = memory_bytes
    if bound is None:
        wanted = max(DEFAULT_BYTES, per_context * layout.bytes_per_block)
        bound = min(wanted, int(available_bytes * _AVAILABLE_SHARE))
    num_blocks = min(bound // layout.bytes_per_block, max_num_seqs * per_context)
    if num_blocks < 1:
        raise SettingsError(
            f"the KV cache's {bound} bytes hold no block of {layout.bytes_per_block} bytes; "
            "raise `kv_cache_memory_bytes` or lower `block_size`"
        )
    return num_blocks


def check_size(layout: CacheLayout, num_blocks: int, available_bytes: int) -> None:
    """Raise `SettingsError` where the cache would take more than `available_bytes`."""
    wanted, most = num_blocks * layout.bytes_per_block, available_bytes // layout.bytes_per_block
    if num_blocks > most:
        raise SettingsError(
            f"the KV cache's {num_blocks} blocks take {wanted} bytes, but only {available_bytes} "
            f"are available; lower `kv_cache_memory_bytes`, or `num_blocks` to at most {most}"
        )


def allocate_caches(layout: CacheLayout, num_blocks: int) -> list[torch.Tensor]:
    """One zeroed tensor [num_blocks, 2, num_kv_heads, block_size, head_dim] per layer.

    The memory is touched only as blocks are first written, a huge page at a time, but for the first
    blocks, which the warm-up writes. It must be zero: what attention masks out is multiplied by
    zero, which a stray NaN would survive.
    Raises `SettingsError` where the system does not give that much.
    """
    shape = (num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    per_layer = num_blocks * layout.bytes_per_block // layout.num_layers
    try:
        return [
            HugePages(per_layer, small_bytes=HUGE_PAGE).tensor(shape, layout.dtype)
            for _ in range(layout.num_layers)
        ]
    except (OSError, OverflowError, RuntimeError) as error:
        raise SettingsError(
            f"the KV cache's {num_blocks * layout.bytes_per_block} bytes cannot be allocated "
            f"({error}); lower `num_blocks` or `kv_cache_memory_bytes`"
        ) from error
