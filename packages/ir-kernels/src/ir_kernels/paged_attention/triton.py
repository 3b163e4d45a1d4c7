"""`paged_attention` in Triton: triton_kernels/attention.py.

Nothing here asks the device for a length, so that a step can be captured in a CUDA graph: grids
follow from shapes alone.
"""

import math

import torch
from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels

MAX_HEAD_SIZE = 256
"""The largest head whose keys and values fit beside each other in shared memory."""

# float32 keeps below 64 rows: from there on, triton lets sm_100 multiply in tf32.
_FEW_ROWS, _FLOAT32_ROWS, _MANY_ROWS = 16, 32, 64
_MAX_GROUP = 128
# Up to so many requests there is one kernel, so that another number of them compiles nothing.
_REQUESTS = 256
# Fewer keys than this are not worth a program of their own, nor more splits worth merging.
_KEYS_PER_SPLIT, _MAX_SPLITS = 256, 16


def register(op: IrOp) -> None:
    """Register provider `triton`; how it splits keys depends on the batch: no invariance."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
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
    """Any layout of q, k, v and output; any float cache; heads of up to 256."""
    group = x_query.shape[1] // max(1, kv_cache.shape[2])
    most = _FLOAT32_ROWS if x_query.dtype == float32 else _MAX_GROUP
    others = {"x_key": x_key, "x_value": x_value, "output": output}
    steps = {
        "block_table": block_table,
        "seq_lens": seq_lens,
        "query_start_loc": query_start_loc,
        "slot_mapping": slot_mapping,
    }
    return (
        arguments.activation(x_query, triton_kernels.device_type())
        or arguments.one_device(x_query, **others, kv_cache=kv_cache, **steps)
        or arguments.same_dtype(x_query, x_key, "x_key")
        or arguments.same_dtype(x_query, x_value, "x_value")
        or arguments.same_dtype(x_query, output, "output")
        or arguments.float_cache(kv_cache)
        or arguments.at_most(MAX_HEAD_SIZE, "elements in a head", kv_cache.shape[4])
        or (scale <= 0 and f"needs a positive scale, not {scale}")
        or arguments.at_most(most, "query heads for a key head", group)
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
    """Tiles of queries over the keys where they lie; no index is checked against its tensor."""
    _write(x_key, x_value, kv_cache, slot_mapping)
    _attend(
        x_query,
        output,
        kv_cache,
        block_table,
        seq_lens.contiguous(),
        query_start_loc.contiguous(),
        scale,
        sliding_window,
    )


def num_splits(num_programs: int, num_keys: int, num_cores: int) -> int:
    """Into how many parts to split keys, of which a request has up to `num_keys`.

    A power of two: enough for every core to have a program, where there are keys enough.
    """
    wanted = min(2 * num_cores // num_programs, num_keys // _KEYS_PER_SPLIT, _MAX_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


def _num_rows(query: Tensor, num_requests: int) -> int:
    """Rows of a tile: few where each request has one token, so that few are idle."""
    if query.shape[0] <= num_requests:
        return _FEW_ROWS
    return _FLOAT32_ROWS if query.dtype == float32 else _MANY_ROWS


def _num_keys(dtype: torch.dtype, head_size: int) -> int:
    """Keys at a time: as many as leave their values, and the tile's sums, in registers."""
    if dtype == float32:
        return 16
    return 64 if head_size <= 128 else 32


def _write(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    from ir_kernels.triton_kernels import attention  # noqa: PLC0415

    _, _, num_heads, block_size, head_size = kv_cache.shape
    triton_kernels.launch(
        attention.write_tokens,
        (key.shape[0],),
        key,
        value,
        kv_cache,
        slots.contiguous(),
        *key.stride(),
        *value.stride(),
        *kv_cache.stride(),
        NUM_HEADS=num_heads,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        HEADS=triton_kernels.next_power_of_2(num_heads),
        COLUMNS=triton_kernels.next_power_of_2(head_size),
    )


def _attend(
    query: Tensor,
    output: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    starts: Tensor,
    scale: float,
    window: int | None,
) -> None:
    from ir_kernels.triton_kernels import attention  # noqa: PLC0415

    num_tokens, num_query_heads, head_size = query.shape
    num_requests, num_heads, block_size = lengths.shape[0], *kv_cache.shape[2:4]
    if num_tokens == 0 or num_requests == 0:
        return
    group = num_query_heads // num_heads
    rows = max(_num_rows(query, num_requests), triton_kernels.next_power_of_2(group))
    tiles = num_tokens // (rows // group) + num_requests
    columns = triton_kernels.next_power_of_2(max(16, head_size))
    splits = num_splits(
        tiles * num_heads,
        block_table.shape[1] * block_size,
        triton_kernels.num_cores(query.device),
    )
    num_parts = splits if splits > 1 else 0
    parts = torch.empty(
        (num_parts, num_tokens, num_query_heads, columns), dtype=torch.float32, device=query.device
    )
    sums = torch.empty((*parts.shape[:3], 2), dtype=torch.float32, device=query.device)
    shape = {
        "NUM_HEADS": num_query_heads,
        "HEAD_SIZE": head_size,
        "GROUP": group,
        "REQUESTS": triton_kernels.next_power_of_2(max(_REQUESTS, num_requests)),
        "TOKENS": rows // group,
        "ROWS": rows,
        "COLUMNS": columns,
    }
    log2_scale = scale * math.log2(math.e)
    triton_kernels.launch(
        attention.attend_tiles,
        (tiles, num_heads, splits),
        query,
        kv_cache,
        output,
        parts,
        sums,
        block_table,
        lengths,
        starts,
        num_requests,
        log2_scale,
        *query.stride(),
        *output.stride(),
        *kv_cache.stride(),
        *block_table.stride(),
        num_tokens * num_query_heads,
        BLOCK_SIZE=block_size,
        WINDOW=window,
        IS_SPLIT=splits > 1,
        KEYS=_num_keys(query.dtype, columns),
        num_stages=2,
        num_warps=8 if columns > 64 else 4,
        **shape,
    )
    if splits > 1:
        triton_kernels.launch(
            attention.merge_parts,
            (tiles, num_heads),
            parts,
            sums,
            output,
            lengths,
            starts,
            num_requests,
            log2_scale,
            *output.stride(),
            num_tokens * num_query_heads,
            splits,
            **shape,
        )
