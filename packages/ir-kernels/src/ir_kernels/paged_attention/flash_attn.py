"""`paged_attention` by the flash-attn package (FlashAttention 2)."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, flash_attn_library
from ir_kernels.paged_attention.cache_write import write_tokens

MAX_HEAD_SIZE = 256
BLOCK_SIZE = 256
"""Blocks of the cache are a multiple of it."""


def register(op: IrOp) -> None:
    """Register provider `flash_attn`."""
    op.register_impl(
        "flash_attn",
        supported=flash_attn_library.availability,
        supports_args=supports_args,
        opaque=True,
    )(paged_attention)


def supports_args(
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
) -> bool | str:
    """16-bit activations, a cache of their dtype in large blocks; any number of query heads."""
    head_size, block_size = kv_cache.shape[4], kv_cache.shape[3]
    return (
        arguments.activation(x_query, "cuda", arguments.HALVES)
        or arguments.attention_dtypes(x_query, x_key, x_value, output, kv_cache)
        or (scale <= 0 and f"needs a positive scale, not {scale}")
        or (head_size % 8 != 0 and f"needs heads of a multiple of 8, not {head_size}")
        or arguments.at_most(MAX_HEAD_SIZE, "elements in a head", head_size)
        or (
            block_size % BLOCK_SIZE != 0
            and f"needs cache blocks of a multiple of {BLOCK_SIZE} tokens, not {block_size}"
        )
        or True
    )


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
    """Asks the device for no length: the shapes bound them, and grids follow from the bounds.

    The library masks each request's queries as its last, and zeroes those of a request without
    keys, so what the op leaves alone is put back. It does not split a request's keys.
    """
    write_tokens(x_key, x_value, kv_cache, slot_mapping)
    num_tokens, num_requests = x_query.shape[0], seq_lens.shape[0]
    if num_tokens == 0 or num_requests == 0:
        return
    # With one query at most the library would expect one of every request.
    most_queries = max(2, num_tokens)
    result = flash_attn_library.kernels().flash_attn_varlen_func(
        x_query,
        *(kv_cache[:, kind].transpose(1, 2) for kind in (0, 1)),
        cu_seqlens_q=query_start_loc.contiguous(),
        cu_seqlens_k=torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        max_seqlen_q=most_queries,
        max_seqlen_k=block_table.shape[1] * kv_cache.shape[3],
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
        block_table=block_table.contiguous(),
    )
    attended = is_attended(num_tokens, seq_lens, query_start_loc)
    output.copy_(torch.where(attended[:, None, None], result, output))


def is_attended(num_tokens: int, seq_lens: Tensor, query_start_loc: Tensor) -> Tensor:
    """[T] bool: whether a row belongs to a request, and to one that has keys."""
    row = torch.arange(num_tokens, device=seq_lens.device, dtype=query_start_loc.dtype)
    request = torch.searchsorted(query_start_loc[1:].contiguous(), row, right=True)
    last = seq_lens.shape[0] - 1
    return (request <= last) & (seq_lens[request.clamp(max=last)] > 0)
