"""Rows of a table by token id, dense and in 8 bits. Own their meaning."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.ops.groupwise import check_dtype, check_groups, dequantize
from ir_core.ops.panel_layout import register_panel16
from ir_core.ops.workload import Workload, workloads

_BENCHES = tuple(
    Workload(
        name,
        reason,
        {"num_tokens": num_tokens, "shape": (49152, 576)},
        checked=False,
        bench=True,
    )
    for name, reason, num_tokens in (
        ("one-row", "decode of one request", 1),
        ("batch", "decode of 32 requests", 32),
        ("prefill", "a chunk of a prompt", 512),
    )
)
_CHECKS = (
    Workload("repeated", "more tokens than rows", {"num_tokens": 40, "shape": (18, 64)}, 0.0),
    Workload("wide", "rows of a model", {"num_tokens": 9, "shape": (50, 576)}, 0.0),
    Workload("last-row", "a last panel of one row", {"num_tokens": 5, "shape": (33, 32)}, 0.0),
    Workload("few-rows", "no full panel", {"num_tokens": 5, "shape": (3, 64)}, 0.0),
)


@register_op(weights=("weight",), token_dims={"input_ids": 0}, batch_invariant=True)
def embedding(input_ids: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
    """Rows of `weight` [rows, K] by `input_ids` int64 [T]: [T, K] of its dtype, copied bit for bit.

    An id that is no row is an IndexError.
    """
    return functional.embedding(input_ids, weight)


@register_op(weights=("weight", "scale"), token_dims={"input_ids": 0}, batch_invariant=True)
def embedding_w8a16(
    input_ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """Rows of 8-bit values by `input_ids` int64 [T]: [T, K] of `dtype`, a floating one.

    `weight` int8 [rows, K]; `scale` float16 [rows, K / group_size]. A value is `q * scale`, which
    float32 holds exactly, rounded to `dtype`. An id that is no row is an IndexError; a shape that
    does not fit is an ArgumentError.
    """
    _check(weight, scale, group_size)
    wide = torch.promote_types(dtype, torch.float32)
    rows = functional.embedding(input_ids, weight), functional.embedding(input_ids, scale)
    return dequantize(*rows, None, wide).to(dtype)


register_panel16(embedding)
register_panel16(embedding_w8a16)


@embedding_w8a16.register_fake
def _embedding_w8a16_fake(
    input_ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    group_size: int,
    layout: str,
) -> Tensor:
    _check(weight, scale, group_size)
    return weight.new_empty(input_ids.shape[0], weight.shape[1], dtype=dtype)


def _check(weight: Tensor, scale: Tensor, group_size: int) -> None:
    check_dtype("embedding_w8a16", weight, torch.int8)
    check_groups("embedding_w8a16", weight, {"scale": scale}, group_size, per_byte=1)


@embedding.register_input_generator
@workloads(
    *_BENCHES,
    *_CHECKS,
    Workload("odd", "no vector width divides a row", {"num_tokens": 7, "shape": (37, 45)}, 0.0),
    Workload(
        "odd-values", "infinities, NaN and denormals", {"num_tokens": 7, "odd_values": True}, 0.0
    ),
)
def _embedding_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    odd_values: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(shape[0], (num_tokens,), generator=random)
    weight = torch.randn(shape, generator=random).to(dtype)
    if odd_values:
        tiny = torch.finfo(dtype).tiny / 2
        weight[:, :6] = torch.tensor([torch.nan, torch.inf, -torch.inf, tiny, -tiny, -0.0])
    return input_ids, weight


@embedding_w8a16.register_input_generator
@workloads(
    *_BENCHES,
    *_CHECKS,
    Workload(
        "odd-group",
        "groups and rows of odd sizes",
        {"num_tokens": 7, "shape": (37, 35), "group_size": 7},
        0.0,
    ),
    Workload(
        "odd-values", "infinities, NaN and denormals", {"num_tokens": 7, "odd_values": True}, 0.0
    ),
)
def _embedding_w8a16_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    group_size: int = 32,
    odd_values: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(shape[0], (num_tokens,), generator=random)
    weight = torch.randint(-128, 128, shape, generator=random, dtype=torch.int8)
    spread = torch.rand(shape[0], shape[1] // group_size, generator=random)
    scale = ((0.5 + spread) / 128).to(torch.float16)
    if odd_values:
        odd = [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float16).tiny / 2]
        scale[:, 0] = torch.tensor(odd).repeat(shape[0])[: shape[0]]
    return input_ids, weight, scale, dtype, group_size


for _dtype in (torch.float32, torch.bfloat16, torch.float16):
    embedding.override_tolerance(_dtype, atol=0, rtol=0, reason="rows are copied")
    embedding_w8a16.override_tolerance(
        _dtype, atol=0, rtol=0, reason="the product is exact in float32 and rounded once"
    )
