"""`paged_attention` by the FlashInfer package, which reads the cache as it lies."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, flashinfer_library
from ir_kernels.paged_attention.cache_write import write_tokens

HEAD_SIZES = (64, 128, 256)


def register(op: IrOp) -> None:
    """Register provider `flashinfer`."""
    op.register_impl(
        "flashinfer",
        supported=flashinfer_library.availability,
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
    """16-bit activations and a cache of their dtype; blocks of any size, any number of heads."""
    head_size = kv_cache.shape[4]
    return (
        arguments.activation(x_query, "cuda", arguments.HALVES)
        or arguments.attention_dtypes(x_query, x_key, x_value, output, kv_cache)
        or (scale <= 0 and f"needs a positive scale, not {scale}")
        or (
            head_size not in HEAD_SIZES
            and f"takes heads of {', '.join(map(str, HEAD_SIZES))}, not {head_size}"
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
    """Plans on the host at each call, so it waits for the lengths and fits into no CUDA graph.

    The library compiles a kernel for a dtype and head size when they first come.
    """
    write_tokens(x_key, x_value, kv_cache, slot_mapping)
    block_size, head_size = kv_cache.shape[3:]
    batch = _batch_of(block_table, seq_lens.tolist(), query_start_loc.tolist(), block_size)
    if not batch.rows:
        return
    attention = flashinfer_library.paged_prefill(x_query.device)
    attention.plan(
        _int32(batch.query_starts),
        _int32(batch.block_starts),
        batch.blocks,
        _int32(batch.last_block_lens),
        num_qo_heads=x_query.shape[1],
        num_kv_heads=kv_cache.shape[2],
        head_dim_qk=head_size,
        page_size=block_size,
        causal=True,
        sm_scale=scale,
        window_left=-1 if sliding_window is None else sliding_window - 1,
        q_data_type=x_query.dtype,
        kv_data_type=kv_cache.dtype,
    )
    rows = torch.tensor(batch.rows, device=output.device)
    output.index_copy_(0, rows, attention.run(x_query.index_select(0, rows), kv_cache))


class _Batch(NamedTuple):
    """Requests that have queries and keys: rows of theirs in the step, and their cache blocks."""

    rows: list[int]
    query_starts: list[int]
    block_starts: list[int]
    blocks: Tensor
    last_block_lens: list[int]


def _batch_of(
    block_table: Tensor, lengths: list[int], starts: list[int], block_size: int
) -> _Batch:
    kept = [
        request
        for request, length in enumerate(lengths)
        if length > 0 and starts[request + 1] > starts[request]
    ]
    spans = [range(starts[request], starts[request + 1]) for request in kept]
    counts = [-(-lengths[request] // block_size) for request in kept]
    tables = [block_table[request, :count] for request, count in zip(kept, counts, strict=True)]
    return _Batch(
        rows=[row for span in spans for row in span],
        query_starts=[0, *accumulate(map(len, spans))],
        block_starts=[0, *accumulate(counts)],
        blocks=torch.cat([block_table.new_empty(0), *tables]),
        last_block_lens=[(lengths[request] - 1) % block_size + 1 for request in kept],
    )


def _int32(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)
