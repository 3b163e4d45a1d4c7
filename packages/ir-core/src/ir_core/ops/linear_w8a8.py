"""The projection of 8-bit activations by 8-bit weights. Owns its meaning; quantises nothing."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.groupwise import check_dtype
from ir_core.ops.linear_workloads import BENCHES, CHECKS
from ir_core.ops.panel_layout import register_panel16
from ir_core.ops.workload import Workload, workloads

MAX_INNER = (1 << 17) - 1
"""The longest row whose products of bytes add up within int32, whatever the bytes are."""

# Of integers drawn evenly from all there are.
_DEVIATION = 73.9


@register_op(weights=("weight",), batch_invariant=True)
def linear_w8a8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    layout: str = "plain",
) -> Tensor:
    """`(x * x_scale) @ (weight * weight_scale).T + bias` of integers: [..., out] of `dtype`.

    `x` int8 [..., in] with `x_scale` float32 [..., 1], one for each row; `weight` int8 [out, in]
    with `weight_scale` float32 [out]; `bias` [out] of `dtype` or None. Products are added up
    exactly, as integers. The sum, rounded to float32, is multiplied by the product of both scales;
    then the bias is added, all in float32, and the result is rounded to `dtype`.

    A shape or dtype that does not fit is an ArgumentError; `in` is at most 131071.
    """
    _check(x, x_scale, weight, weight_scale)
    wide = torch.promote_types(x_scale.dtype, torch.float32)
    # Every sum is an integer that float64 holds, in whatever order it is made.
    sums = (x.to(torch.float64) @ weight.to(torch.float64).T).to(wide)
    values = sums * (x_scale * weight_scale)
    if bias is not None:
        values = values + bias
    return values.to(dtype)


register_panel16(linear_w8a8)


@linear_w8a8.register_fake
def _linear_w8a8_fake(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None,
    layout: str,
) -> Tensor:
    _check(x, x_scale, weight, weight_scale)
    return x.new_empty(*x.shape[:-1], weight.shape[0], dtype=dtype)


def _check(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> None:
    check_dtype("linear_w8a8", weight, torch.int8)
    if weight.dim() != 2 or weight.shape[1] > MAX_INNER:
        raise ArgumentError(
            f"`linear_w8a8` got a `weight` of shape {list(weight.shape)}; it has 2 dims, the last "
            f"of at most {MAX_INNER}."
        )
    if x.dtype != torch.int8 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(
            f"`linear_w8a8` got `x` of {x.dtype}{list(x.shape)}; it is torch.int8 and its last dim "
            f"is {weight.shape[1]}."
        )
    for name, scale, shape in (
        ("x_scale", x_scale, (*x.shape[:-1], 1)),
        ("weight_scale", weight_scale, weight.shape[:1]),
    ):
        if scale.shape != shape:
            raise ArgumentError(
                f"`linear_w8a8` got `{name}` of shape {list(scale.shape)}; it is {list(shape)}."
            )


@linear_w8a8.register_input_generator
@workloads(
    *BENCHES,
    # Both scales and every rounding are the meaning's: there is nothing to be off by.
    *(replace(each, max_differing=0.0) for each in CHECKS),
    Workload("odd", "no vector width divides it", {"num_tokens": 3, "shape": (13, 37)}, 0.0),
    Workload(
        "odd-panels", "full panels of an odd width", {"num_tokens": 9, "shape": (37, 45)}, 0.0
    ),
    Workload("one-input", "rows of one element", {"num_tokens": 2, "shape": (18, 1)}, 0.0),
    Workload(
        "extremes",
        "the greatest sums that bytes have",
        {"num_tokens": 5, "shape": (33, 1030), "extremes": True},
        0.0,
    ),
)
def _linear_w8a8_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    middle: tuple[int, ...] = (),
    biased: bool = False,
    odd_values: bool = False,
    extremes: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    """Scales make values whose products add up to about 1."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(-128, 128, (num_tokens, *middle, shape[1]), generator=random).to(torch.int8)
    weight = torch.randint(-128, 128, shape, generator=random).to(torch.int8)
    if extremes:
        x = torch.where(x < 0, -128, 127).to(torch.int8)
        weight = torch.where(weight[:, :1] < 0, -128, 127).expand(shape).to(torch.int8)
    x_scale = 0.5 + torch.rand(num_tokens, *middle, 1, generator=random)
    weight_scale = 0.5 + torch.rand(shape[0], generator=random)
    weight_scale *= shape[1] ** -0.5 / _DEVIATION**2
    if odd_values:
        weight_scale[0], weight_scale[17] = torch.nan, torch.inf
        weight_scale[20] = torch.finfo(torch.float32).tiny / 2
    bias = torch.randn(shape[0], generator=random).to(dtype) if biased else None
    return x, x_scale, weight, weight_scale, dtype, bias
