"""Paged attention: the cache write, attention of tiles of queries, and the merge of split keys.

A tile is some tokens of one request with all query heads of one key head: its rows share the keys
that are read. Which request a tile belongs to is found on the device, since no length is known to
the host: request r owns the tiles from `starts[r] // TOKENS + r` on, so that
`num_tokens // TOKENS + num_requests` tiles are enough for every batch, and some have nothing to do.
"""

# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch. What a kernel
# calls is inlined; called from Python it would raise, so a checker thinks that it never returns.

import triton
import triton.language as tl

from ir_kernels.triton_kernels.storage import convert, narrow, operand


@triton.jit
def write_tokens(
    key,
    value,
    cache,
    slots,
    key_token,
    key_head,
    key_column,
    value_token,
    value_head,
    value_column,
    cache_block,
    cache_kind,
    cache_head,
    cache_slot,
    cache_column,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One token's keys and values into its slot; none for a slot below 0."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < NUM_HEADS) & (column < HEAD_SIZE) & (slot >= 0)
    place = cache + (slot // BLOCK_SIZE) * cache_block + (slot % BLOCK_SIZE) * cache_slot
    place = place + head * cache_head + column * cache_column
    dtype: tl.constexpr = cache.dtype.element_ty
    new = tl.load(key + token * key_token + head * key_head + column * key_column, inside, 0.0)
    tl.store(place, convert(new, dtype), inside)
    at = value + token * value_token + head * value_head + column * value_column
    tl.store(place + cache_kind, convert(tl.load(at, inside, 0.0), dtype), inside)


@triton.jit
def _find_tile(starts, num_requests, REQUESTS: tl.constexpr, TOKENS: tl.constexpr):
    """This program's request, the request's first row and number of rows, and the tile's first."""
    tile = tl.program_id(0)
    request = tl.arange(0, REQUESTS)
    known = request < num_requests
    first_tile = tl.load(starts + request, known, 0) // TOKENS + request
    mine = tl.sum((known & (first_tile <= tile)).to(tl.int32), axis=0) - 1
    begin = tl.load(starts + mine)
    count = tl.load(starts + mine + 1) - begin
    return mine, begin, count, (tile - begin // TOKENS - mine) * TOKENS


@triton.jit
def _find_rows(begin, count, first, TOKENS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Of each row of a tile: its token within the request, in the batch, and whether it is one."""
    row = tl.arange(0, ROWS)
    new = first + row // GROUP
    return new, (begin + new).to(tl.int64), (row < TOKENS * GROUP) & (new < count)


@triton.jit
def _store_rows(output, at, result, total, inside):
    """Weighted sums by the sum of their weights, rounded once."""
    tl.store(output + at, narrow(result / total[:, None], output.dtype.element_ty), inside)


@triton.jit
def _raise_origin(best, other):
    """The higher maximum, and as an origin of exponents: a number even where both are -inf."""
    highest = tl.maximum(best, other)
    return highest, tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit(do_not_specialize=["num_requests", "part_stride"])
def attend_tiles(
    query,
    cache,
    output,
    parts,
    part_sums,
    block_table,
    lengths,
    starts,
    num_requests,
    scale,
    query_token,
    query_head,
    query_column,
    output_token,
    output_head,
    output_column,
    cache_block,
    cache_kind,
    cache_head,
    cache_slot,
    cache_column,
    table_row,
    table_column,
    part_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    REQUESTS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """A tile over its share of the keys: grid (tiles, key heads, splits).

    `scale` is positive and has log2 e in it; it multiplies differences of scores, which are small
    where they matter, so that large scores lose nothing. Where nothing is split the result goes to
    `output`; else what `merge_parts` needs goes to dense `parts` [splits, T, NUM_HEADS, COLUMNS]
    and `part_sums` [splits, T, NUM_HEADS, 2] of float32; `part_stride` is T * NUM_HEADS.
    """
    request, begin, count, first = _find_tile(starts, num_requests, REQUESTS, TOKENS)
    length = tl.load(lengths + request)
    if (first >= count) | (length == 0):
        return
    key_head = tl.program_id(1)
    new, token, known = _find_rows(begin, count, first, TOKENS, GROUP, ROWS)
    head = key_head * GROUP + tl.arange(0, ROWS) % GROUP
    column = tl.arange(0, COLUMNS)
    inside = known[:, None] & (column < HEAD_SIZE)[None, :]
    at = (token * query_token + head * query_head)[:, None] + (column * query_column)[None, :]
    query_tile = operand(tl.load(query + at, inside, 0.0))

    position = length - count + new
    end = length - count + tl.minimum(first + TOKENS, count)
    oldest = 0 if WINDOW is None else tl.maximum(length - count + first - WINDOW + 1, 0)
    share = tl.cdiv(tl.cdiv(end - oldest, KEYS), tl.num_programs(2)) * KEYS
    lowest = oldest + tl.program_id(2) * share
    end = tl.minimum(end, lowest + share)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, COLUMNS], tl.float32)
    dtype: tl.constexpr = query.dtype.element_ty
    head_cache = cache + key_head.to(tl.int64) * cache_head
    for start in range(lowest, end, KEYS):
        key = start + tl.arange(0, KEYS)
        present = key < end
        entry = block_table + request.to(tl.int64) * table_row + (key // BLOCK_SIZE) * table_column
        block = tl.load(entry, present, 0).to(tl.int64)
        place = head_cache + block * cache_block + (key % BLOCK_SIZE) * cache_slot
        key_tile = tl.load(
            place[None, :] + (column * cache_column)[:, None],
            present[None, :] & (column < HEAD_SIZE)[:, None],
            0.0,
        )
        scores = tl.dot(query_tile, operand(convert(key_tile, dtype)), input_precision="ieee")
        visible = present[None, :] & (key[None, :] <= position[:, None])
        if WINDOW is not None:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        highest, origin = _raise_origin(best, tl.max(scores, axis=1))
        weights = tl.exp2((scores - origin[:, None]) * scale)
        fade = tl.exp2((best - origin) * scale)
        total = total * fade + tl.sum(weights, axis=1)
        value_tile = tl.load(
            place[:, None] + cache_kind + (column * cache_column)[None, :],
            present[:, None] & (column < HEAD_SIZE)[None, :],
            0.0,
        )
        result = tl.dot(
            operand(narrow(weights, dtype)),
            operand(convert(value_tile, dtype)),
            result * fade[:, None],
            input_precision="ieee",
        )
        best = highest

    if IS_SPLIT:
        part = tl.program_id(2).to(tl.int64) * part_stride + token * NUM_HEADS + head
        tl.store(parts + part[:, None] * COLUMNS + column[None, :], result, inside)
        tl.store(part_sums + part * 2, best, known)
        tl.store(part_sums + part * 2 + 1, total, known)
    else:
        at = (token * output_token + head * output_head)[:, None]
        _store_rows(output, at + (column * output_column)[None, :], result, total, inside)


@triton.jit(do_not_specialize=["num_requests", "part_stride", "num_splits"])
def merge_parts(
    parts,
    part_sums,
    output,
    lengths,
    starts,
    num_requests,
    scale,
    output_token,
    output_head,
    output_column,
    part_stride,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    REQUESTS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The splits of `attend_tiles` into `output`, in their order: grid (tiles, key heads)."""
    request, begin, count, first = _find_tile(starts, num_requests, REQUESTS, TOKENS)
    if (first >= count) | (tl.load(lengths + request) == 0):
        return
    _, token, known = _find_rows(begin, count, first, TOKENS, GROUP, ROWS)
    head = tl.program_id(1) * GROUP + tl.arange(0, ROWS) % GROUP
    column = tl.arange(0, COLUMNS)
    inside = known[:, None] & (column < HEAD_SIZE)[None, :]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, COLUMNS], tl.float32)
    for split in range(num_splits):
        part = split * part_stride + token * NUM_HEADS + head
        part_best = tl.load(part_sums + part * 2, known, 0.0)
        highest, origin = _raise_origin(best, part_best)
        fade = tl.exp2((best - origin) * scale)
        part_fade = tl.exp2((part_best - origin) * scale)
        total = total * fade + tl.load(part_sums + part * 2 + 1, known, 1.0) * part_fade
        added = tl.load(parts + part[:, None] * COLUMNS + column[None, :], inside, 0.0)
        result = result * fade[:, None] + added * part_fade[:, None]
        best = highest
    at = (token * output_token + head * output_head)[:, None] + (column * output_column)[None, :]
    _store_rows(output, at, result, total, inside)
