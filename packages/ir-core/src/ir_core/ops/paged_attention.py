"""Paged attention with its cache write. Owns its meaning; allocates no blocks, plans no step.

Shapes: T tokens, R requests, Hq query heads, H key heads, S block size, D head size.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.ops.paged_attention_inputs import WORKLOADS, paged_attention_inputs
from ir_core.ops.paged_cache import gather_exact, gather_padded, write_tokens
from ir_core.ops.workload import workloads

# A decode batch pays one call per group; up to this many requests are cheaper one by one.
_SMALL_GROUP = 2
# Keys and values gathered at once stay below the size where fresh pages cost more than the copy.
_GATHERED_BYTES = 8 << 20

TOKEN_DIMS = {
    "output": 0,
    "block_table": (0, 1),
    "seq_lens": 0,
    "query_start_loc": 0,
    "slot_mapping": 0,
}
"""Dims that depend on the batch, besides those of the activations."""


@register_op(mutates=("output", "kv_cache"), splits=True, opaque=True, token_dims=TOKEN_DIMS)
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
    """Write the new tokens' keys and values to the cache, then attend causally into `output`.

    `x_query` and `output` [T, Hq, D]; `x_key`, `x_value` [T, H, D], Hq a multiple of H; `kv_cache`
    [blocks, 2, H, S, D]; `block_table` [R, blocks of a request] int32; `seq_lens` [R] int32, the
    new tokens included; `query_start_loc` [R + 1] int32; `slot_mapping` [T] int64, block * S +
    offset, -1 for padding, which is not written. A request's queries are the last of its keys;
    with `sliding_window` W each sees itself and W - 1 keys before. Float32 softmax.

    Rows of `output` past `query_start_loc[R]`, and those of a request with a length of 0, are left
    as they are. What lies in the cache beyond a request's length is never read into a result.
    """
    write_tokens(x_key, x_value, kv_cache, slot_mapping)
    batch = _Batch(x_query, output, kv_cache, block_table, scale, sliding_window)
    starts: list[int] = query_start_loc.tolist()
    decodes: list[_Decode] = []
    for request, length in enumerate(seq_lens.tolist()):
        first, end = starts[request], starts[request + 1]
        if length == 0 or first == end:
            continue
        if end == first + 1:
            decodes.append((length, request, first))
        else:
            _attend_request(batch, length, request, slice(first, end))
    for group in _similar(decodes, kv_cache):
        if len(group) > _SMALL_GROUP:
            _attend_group(batch, group)
            continue
        for length, request, row in group:
            _attend_request(batch, length, request, slice(row, row + 1))


class _Batch(NamedTuple):
    query: Tensor
    output: Tensor
    kv_cache: Tensor
    block_table: Tensor
    scale: float
    window: int | None


_Decode = tuple[int, int, int]  # length, request, row of its query


def _attend_request(batch: _Batch, length: int, request: int, rows: slice) -> None:
    """One request's queries over exactly its own keys: nothing else is gathered."""
    query, window = batch.query[rows], batch.window
    count, _, head_size = query.shape
    oldest = 0 if window is None else max(0, length - count - window + 1)
    kv = gather_exact(batch.kv_cache, batch.block_table[request], oldest, length)
    key, value = kv.to(query.dtype).unsqueeze(1)
    if count == 1:
        # The query heads of a key head become rows of one matrix; one query needs no mask.
        grouped = query.reshape(1, key.shape[1], -1, head_size)
        result = functional.scaled_dot_product_attention(grouped, key, value, scale=batch.scale)
        batch.output[rows] = result.view(query.shape)
        return
    mask = _causal_mask(count, length - oldest, window, query.device)
    result = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=batch.scale,
        enable_gqa=True,
    )
    batch.output[rows] = result[0].transpose(0, 1)


def _causal_mask(
    num_queries: int, num_keys: int, window: int | None, device: torch.device
) -> Tensor | None:
    if window is None and num_queries == num_keys:
        return None
    position = torch.arange(num_keys, device=device)
    ahead = position - position[num_keys - num_queries :, None]
    visible = ahead <= 0
    return visible if window is None else visible & (ahead > -window)


def _similar(decodes: Iterable[_Decode], kv_cache: Tensor) -> Iterable[list[_Decode]]:
    """Groups by length rounded up to half an octave, each within the size of a gather."""
    groups: dict[int, list[_Decode]] = {}
    for decode in decodes:
        step = max(1 << (decode[0] - 1).bit_length(), 32) // 2
        groups.setdefault(-(-decode[0] // step) * step, []).append(decode)
    row_bytes = 2 * kv_cache.shape[2] * kv_cache.shape[4] * kv_cache.itemsize
    for width, group in groups.items():
        most = max(1, _GATHERED_BYTES // (width * row_bytes))
        yield from (group[at : at + most] for at in range(0, len(group), most))


def _attend_group(batch: _Batch, group: list[_Decode]) -> None:
    """One query of each of several requests, padded to the longest."""
    lengths, requests, rows = torch.tensor(group, device=batch.query.device).unbind(1)
    width = max(length for length, _, _ in group)
    oldest = torch.zeros_like(lengths)
    if batch.window is not None:
        width = min(width, batch.window)
        oldest = (lengths - batch.window).clamp_(min=0)
    table = batch.block_table.index_select(0, requests)
    kv = gather_padded(batch.kv_cache, table, oldest, lengths, width).to(batch.query.dtype)
    visible = torch.arange(width, device=lengths.device) < (lengths - oldest)[:, None]
    query = batch.query.index_select(0, rows)
    result = functional.scaled_dot_product_attention(
        query.view(len(group), kv.shape[2], -1, query.shape[-1]),
        kv[:, 0],
        kv[:, 1],
        attn_mask=visible[:, None, None],
        scale=batch.scale,
    )
    batch.output.index_copy_(0, rows, result.reshape(query.shape))


@paged_attention.register_fake
def _paged_attention_fake(
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
    """Writes nothing: it has no result, and fake tensors have no values."""


paged_attention.register_input_generator(workloads(*WORKLOADS)(paged_attention_inputs))
paged_attention.override_tolerance(
    torch.bfloat16,
    atol=5e-3,
    rtol=1.6e-2,
    reason="weights may be rounded to bfloat16 before they meet the values",
)
