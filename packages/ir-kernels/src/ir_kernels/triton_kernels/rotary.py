"""Rotation of query and key heads by position, after their RMS norm where they have weights.

A program turns some heads of one token, each in a row of two tiles: the pairs' first and second
elements. What does not turn is a third.
"""

# pyright: reportMissingParameterType=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch.

import triton
import triton.language as tl

from ir_kernels.triton_kernels.norm import times_weight
from ir_kernels.triton_kernels.storage import narrow, widen


@triton.jit
def _scaled(x, scale, weight, column, inside, dtype: tl.constexpr):
    weighted = times_weight(x * scale, tl.load(weight + column, inside, 0.0))
    return widen(narrow(weighted, dtype))


@triton.jit
def _turn(
    x,
    out,
    weight,
    epsilon,
    head,
    x_head,
    x_column,
    cos,
    sin,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    """One token's heads; `x` and `out` point to the token."""
    dtype: tl.constexpr = out.dtype.element_ty
    pair = tl.arange(0, BLOCK)[None, :]
    first_column = pair if IS_NEOX else 2 * pair
    second_column = pair + HALF if IS_NEOX else 2 * pair + 1
    known = head < NUM_HEADS
    inside = known & (pair < HALF)
    x_heads, out_heads = x + head * x_head, out + head * HEAD_SIZE
    first = widen(tl.load(x_heads + first_column * x_column, inside, 0.0))
    second = widen(tl.load(x_heads + second_column * x_column, inside, 0.0))
    rest_column = 2 * HALF + tl.arange(0, REST)[None, :]
    rest_inside = known & (rest_column < HEAD_SIZE)
    rest = widen(tl.load(x_heads + rest_column * x_column, rest_inside, 0.0))
    if weight is not None:
        square = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        square += tl.sum(rest * rest, axis=1, keep_dims=True)
        scale = tl.rsqrt(square / HEAD_SIZE + epsilon)
        first = _scaled(first, scale, weight, first_column, inside, dtype)
        second = _scaled(second, scale, weight, second_column, inside, dtype)
        rest = _scaled(rest, scale, weight, rest_column, rest_inside, dtype)
    turned = narrow(first * cos - second * sin, dtype)
    tl.store(out_heads + first_column, turned, inside)
    turned = narrow(second * cos + first * sin, dtype)
    tl.store(out_heads + second_column, turned, inside)
    tl.store(out_heads + rest_column, narrow(rest, dtype), rest_inside)


@triton.jit(do_not_specialize=["num_positions"])
def turn_heads(
    query,
    key,
    query_out,
    key_out,
    query_weight,
    key_weight,
    epsilon,
    positions,
    table,
    num_positions,
    query_token,
    query_head,
    query_column,
    key_token,
    key_head,
    key_column,
    NUM_QUERY_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    """Query and key [T, heads, HEAD_SIZE] into dense outputs; weights and `table` are dense.

    The second axis of the grid counts blocks of HEADS query heads, then those of key heads. A
    position outside the table has cosines and sines that are not numbers.
    """
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions + token)
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (pair < HALF) & (position >= 0) & (position < num_positions)
    row = table + position * (2 * HALF) + pair
    cos = tl.load(row, inside, float("nan"))
    sin = tl.load(row + HALF, inside, float("nan"))
    head = tl.arange(0, HEADS)[:, None]
    num_query_blocks: tl.constexpr = (NUM_QUERY_HEADS + HEADS - 1) // HEADS
    if block < num_query_blocks:
        _turn(
            query + token * query_token,
            query_out + token * (NUM_QUERY_HEADS * HEAD_SIZE),
            query_weight,
            epsilon,
            head + block * HEADS,
            query_head,
            query_column,
            cos,
            sin,
            NUM_QUERY_HEADS,
            HEAD_SIZE,
            HALF,
            IS_NEOX,
            BLOCK,
            REST,
        )
    else:
        _turn(
            key + token * key_token,
            key_out + token * (NUM_KEY_HEADS * HEAD_SIZE),
            key_weight,
            epsilon,
            head + (block - num_query_blocks) * HEADS,
            key_head,
            key_column,
            cos,
            sin,
            NUM_KEY_HEADS,
            HEAD_SIZE,
            HALF,
            IS_NEOX,
            BLOCK,
            REST,
        )
