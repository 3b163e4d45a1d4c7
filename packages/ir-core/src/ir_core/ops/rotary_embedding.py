"""Rotary position embedding of queries and keys. Owns its meaning; builds no cos/sin table."""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.ops.workload import Workload, workloads


@register_op(allow_inplace=True, batch_invariant=True, token_dims={"positions": 0})
def rotary_embedding(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """Rotate the first R elements of each head by its token's position: (query, key).

    `x_query` [T, Hq*D] or [T, Hq, D], `x_key` likewise with Hkv heads, D = `head_size`;
    `positions` [T] int64; `cos_sin_cache` [max_position, R] float32, cosines | sines, R <= D, even.
    Pairs are (i, i + R/2), or (2i, 2i + 1) where `is_neox` is false. Outputs have the inputs'
    shapes and dtypes, contiguous; float32 inside, one rounding. A position outside the table is an
    error. Source: arXiv:2104.09864.
    """
    cos, sin = cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    return (
        _rotate(x_query, cos, sin, head_size, is_neox),
        _rotate(x_key, cos, sin, head_size, is_neox),
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, is_neox: bool) -> Tensor:
    heads = x if x.dim() == 3 else x.unflatten(-1, (-1, head_size))
    size = 2 * cos.shape[-1]
    turned = heads[..., :size].to(torch.promote_types(x.dtype, cos.dtype))
    first, second = turned.chunk(2, dim=-1) if is_neox else turned.unflatten(-1, (-1, 2)).unbind(-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
    result = joined.to(x.dtype)
    if size < head_size:
        result = torch.cat((result, heads[..., size:]), dim=-1)
    return result.view(x.shape)


@rotary_embedding.register_fake
def _rotary_embedding_fake(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """As native: a trace of a model asks once for each layer, and native takes 0.1 s on fakes."""
    return x_query.new_empty(x_query.shape), x_key.new_empty(x_key.shape)


@rotary_embedding.register_input_generator
@workloads(
    Workload("one-row", "decode of one request", {"num_tokens": 1}, 0.01, bench=True),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32}, 0.01, bench=True),
    Workload(
        "prefill",
        "bound by bandwidth",
        {"num_tokens": 512},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    ),
    Workload("pairs", "neighbours form a pair", {"num_tokens": 5, "is_neox": False}, 0.01),
    Workload("partial", "part of each head turns", {"num_tokens": 5, "rotary_size": 32}, 0.01),
    Workload("flat", "heads joined in one dim", {"num_tokens": 3, "flat": True}, 0.01),
    Workload("odd", "one key head of odd half", {"num_tokens": 7, "heads": (5, 1), "head_size": 6}),
)
def _rotary_embedding_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (9, 3),
    head_size: int = 64,
    rotary_size: int | None = None,
    is_neox: bool = True,
    flat: bool = False,
    max_position: int = 512,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    shape = (num_tokens, sum(heads), head_size)
    query, key = torch.randn(shape, generator=random).to(dtype).split(heads, dim=1)
    if flat:
        query, key = query.flatten(1), key.flatten(1)
    size = rotary_size or head_size
    frequency = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angle = torch.arange(max_position)[:, None] * frequency
    positions = torch.randint(max_position, (num_tokens,), generator=random)
    table = torch.cat((angle.cos(), angle.sin()), dim=-1)
    return query.contiguous(), key.contiguous(), positions, table, head_size, is_neox
