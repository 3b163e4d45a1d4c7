"""The dense projection. Owns its meaning; packs no weights."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.ops.linear_workloads import BENCHES, CHECKS
from ir_core.ops.panel_layout import register_panel16
from ir_core.ops.workload import Workload, workloads


@register_op(weights=("weight",))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain") -> Tensor:
    """`x @ weight.T + bias`: `x` [..., in], `weight` [out, in], `bias` [out] or None.

    Returns [..., out] of `x`'s dtype, which is the weight's too. Sums are at least float32 and are
    rounded once; their order is the implementation's, which may take subnormal numbers for zero.
    """
    return functional.linear(x, weight, bias)


register_panel16(linear)


@linear.register_input_generator
@workloads(
    *BENCHES,
    *CHECKS,
    Workload("odd", "no vector width divides it", {"num_tokens": 3, "shape": (13, 37)}),
    Workload("odd-panels", "full panels of an odd width", {"num_tokens": 9, "shape": (37, 45)}),
    Workload("one-input", "rows of one element", {"num_tokens": 2, "shape": (18, 1)}),
)
def _linear_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    middle: tuple[int, ...] = (),
    biased: bool = False,
    odd_values: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, *middle, shape[1], generator=random).to(dtype)
    weight = (torch.randn(shape, generator=random) * shape[1] ** -0.5).to(dtype)
    bias = torch.randn(shape[0], generator=random).to(dtype)
    if odd_values:
        weight[0, 1], weight[17, 0], weight[18, 2] = torch.nan, torch.inf, -torch.inf
        # Apart from where activations may be infinite: a subnormal number may count as zero.
        weight[20, 8:] = torch.finfo(dtype).tiny / 2
    return x, weight, bias if biased else None
