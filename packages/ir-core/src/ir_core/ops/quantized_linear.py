"""Projections by weights of 4 and 8 bits, in groups. Own their meaning; quantise nothing."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.groupwise import check_dtype, check_groups, dequantize, unpack_nibbles
from ir_core.ops.linear_workloads import BENCHES, CHECKS
from ir_core.ops.panel_layout import register_panel16
from ir_core.ops.workload import Workload, workloads

# Of integers drawn evenly from all there are.
_DEVIATION_4_BITS = 4.6
_DEVIATION_8_BITS = 73.9


@register_op(weights=("weight", "scale", "minimum"))
def linear_w4a16(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """`linear` by 4-bit integers: `x` [..., in], and `bias` [out] of its dtype or None.

    `weight` uint8 [out, in / 2]: byte j of a row holds value 2 j in its low and 2 j + 1 in its high
    nibble. `scale`, and `minimum` if there is one, float16 [out, in / group_size]; `group_size` is
    even and divides `in`. A value is `(q - 8) * scale`, with a minimum `q * scale + minimum`,
    computed in float32 and rounded to `x`'s dtype; an implementation may leave out that rounding.

    Returns [..., out] of `x`'s dtype. A shape that does not fit is an ArgumentError.
    """
    _check_w4a16(x, weight, scale, minimum, group_size)
    integers = unpack_nibbles(weight)
    if minimum is None:
        integers = integers.to(torch.int8) - 8
    wide = torch.promote_types(x.dtype, torch.float32)
    values = dequantize(integers, scale, minimum, wide)
    return functional.linear(x, values.to(x.dtype), bias)


@register_op(weights=("weight", "scale"))
def linear_w8a16(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """`linear` by 8-bit integers: `x` [..., in], and `bias` [out] of its dtype or None.

    `weight` int8 [out, in]; `scale` float16 [out, in / group_size]; `group_size` divides `in`. A
    value is `q * scale`, computed in float32 and rounded to `x`'s dtype; an implementation may
    leave out that rounding.

    Returns [..., out] of `x`'s dtype. A shape that does not fit is an ArgumentError.
    """
    _check_w8a16(x, weight, scale, group_size)
    wide = torch.promote_types(x.dtype, torch.float32)
    values = dequantize(weight, scale, None, wide)
    return functional.linear(x, values.to(x.dtype), bias)


register_panel16(linear_w4a16)
register_panel16(linear_w8a16)


@linear_w4a16.register_fake
def _linear_w4a16_fake(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None,
    bias: Tensor | None,
    group_size: int,
    layout: str,
) -> Tensor:
    _check_w4a16(x, weight, scale, minimum, group_size)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@linear_w8a16.register_fake
def _linear_w8a16_fake(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    group_size: int,
    layout: str,
) -> Tensor:
    _check_w8a16(x, weight, scale, group_size)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _check_w4a16(
    x: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor | None, group_size: int
) -> None:
    check_dtype("linear_w4a16", weight, torch.uint8)
    scales = {"scale": scale, "minimum": minimum}
    check_groups("linear_w4a16", weight, scales, group_size, per_byte=2)
    _check_width("linear_w4a16", x, 2 * weight.shape[1])


def _check_w8a16(x: Tensor, weight: Tensor, scale: Tensor, group_size: int) -> None:
    check_dtype("linear_w8a16", weight, torch.int8)
    check_groups("linear_w8a16", weight, {"scale": scale}, group_size, per_byte=1)
    _check_width("linear_w8a16", x, weight.shape[1])


def _check_width(op: str, x: Tensor, width: int) -> None:
    if x.dim() == 0 or x.shape[-1] != width:
        raise ArgumentError(f"`{op}` got `x` of shape {list(x.shape)}; its last dim is {width}.")


@linear_w4a16.register_input_generator
@workloads(
    *BENCHES,
    *CHECKS,
    Workload("minimum", "Q4_1", {"num_tokens": 3, "shape": (50, 96), "with_minimum": True}),
    Workload(
        "minimum-batch",
        "Q4_1 for many tokens",
        {"num_tokens": 32, "shape": (64, 576), "with_minimum": True},
    ),
    Workload(
        "odd-group",
        "groups of half an odd number of bytes",
        {"num_tokens": 3, "shape": (21, 30), "group_size": 6},
    ),
    Workload(
        "one-group", "a scale per row", {"num_tokens": 3, "shape": (21, 74), "group_size": 74}
    ),
    Workload(
        "large-group", "groups of 128", {"num_tokens": 3, "shape": (40, 256), "group_size": 128}
    ),
)
def _linear_w4a16_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    with_minimum: bool = False,
    **options: Any,
) -> tuple[Any, ...]:
    x, scale, bias, group_size, random = _inputs(
        num_tokens, dtype, shape, _DEVIATION_4_BITS, **options
    )
    weight = torch.randint(256, (shape[0], shape[1] // 2), generator=random, dtype=torch.uint8)
    shift = 8 + torch.rand(scale.shape, generator=random) - 0.5
    minimum = (-shift * scale.float()).to(torch.float16) if with_minimum else None
    return x, weight, scale, minimum, bias, group_size


@linear_w8a16.register_input_generator
@workloads(
    *BENCHES,
    *CHECKS,
    Workload(
        "odd-group",
        "groups and rows of odd sizes",
        {"num_tokens": 3, "shape": (21, 35), "group_size": 7},
    ),
    Workload(
        "one-group", "a scale per row", {"num_tokens": 3, "shape": (21, 37), "group_size": 37}
    ),
    Workload(
        "large-group", "groups of 128", {"num_tokens": 3, "shape": (40, 256), "group_size": 128}
    ),
)
def _linear_w8a16_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    **options: Any,
) -> tuple[Any, ...]:
    x, scale, bias, group_size, random = _inputs(
        num_tokens, dtype, shape, _DEVIATION_8_BITS, **options
    )
    weight = torch.randint(-128, 128, shape, generator=random, dtype=torch.int8)
    return x, weight, scale, bias, group_size


def _inputs(
    num_tokens: int,
    dtype: torch.dtype,
    shape: tuple[int, int],
    deviation: float,
    *,
    group_size: int = 32,
    middle: tuple[int, ...] = (),
    biased: bool = False,
    odd_values: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None, int, torch.Generator]:
    """Everything but the integers; scales make values whose products add up to about 1."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, *middle, shape[1], generator=random).to(dtype)
    spread = 0.5 + torch.rand(shape[0], shape[1] // group_size, generator=random)
    scale = (spread * shape[1] ** -0.5 / deviation).to(torch.float16)
    bias = torch.randn(shape[0], generator=random).to(dtype)
    if odd_values:
        # No infinity: a kernel may scale the sum of a group, which is then another infinity.
        scale[0, 0] = torch.nan
        scale[20, 1:] = torch.finfo(torch.float16).tiny / 2
    return x, scale, bias if biased else None, group_size, random


_UNROUNDED = "an implementation may multiply by values that are not rounded to x's dtype first"
for _op in (linear_w4a16, linear_w8a16):
    _op.override_tolerance(torch.bfloat16, atol=1e-2, rtol=1.6e-2, reason=_UNROUNDED)
    _op.override_tolerance(torch.float16, atol=2e-3, rtol=1e-3, reason=_UNROUNDED)
