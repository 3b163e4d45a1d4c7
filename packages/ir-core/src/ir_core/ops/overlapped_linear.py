"""Dense projections merged with the collective next to them, so that the two can overlap.

Own the meaning, which is that of the two ops one after the other. The weight may lie in any layout
of `linear`; the call names it as a call of `linear` does.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core import groups
from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.collectives import refuse_several_ranks
from ir_core.ops.panel_layout import register_panel16
from ir_core.ops.workload import Workload, workloads

_WORKLOADS = (
    Workload("one-row", "decode of one request", {"num_tokens": 1, "shape": (96, 576)}),
    Workload("prefill", "many rows", {"num_tokens": 130, "shape": (96, 64)}, bench=True),
    Workload("odd", "neither ranks nor vectors divide it", {"num_tokens": 7, "shape": (13, 37)}),
    Workload("bias", "each rank adds its own", {"num_tokens": 5, "biased": True}),
    Workload("leading-dims", "rows of two dims", {"num_tokens": 3, "middle": (2,)}),
)


@register_op(opaque=True, weights=("weight",))
def linear_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """`reduce_scatter(linear(x, weight, bias, layout), group)`: [ceil(T / world), ..., out].

    `x` [T, ..., in], `weight` [out, in], `bias` [out] or None, all of one dtype. Every rank's bias
    is a part of the sum. Products are rounded before they are summed, as the two ops round them.

    Raises:
        ArgumentError: `x` has no rows, or rows of another width.
        CollectiveError: as `reduce_scatter`.
    """
    _check_rows("linear_reduce_scatter", x, weight)
    refuse_several_ranks("linear_reduce_scatter", group)
    return functional.linear(x, weight, bias)


@register_op(opaque=True, weights=("weight",), token_dims={"num_tokens": ()})
def all_gather_linear(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """`linear(all_gather(x, num_tokens, group), weight, bias, layout)`: [num_tokens, ..., out].

    `x` [rows, ..., in], `weight` [out, in], `bias` [out] or None, all of one dtype. Rows behind
    `num_tokens` are padding, which never leaks.

    Raises:
        ArgumentError: `x` has no rows, or rows of another width.
        CollectiveError, RuntimeError: as `all_gather`.
    """
    _check_rows("all_gather_linear", x, weight)
    refuse_several_ranks("all_gather_linear", group)
    return functional.linear(x.narrow(0, 0, num_tokens), weight, bias)


@linear_reduce_scatter.register_fake
def _linear_reduce_scatter_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    _check_rows("linear_reduce_scatter", x, weight)
    size = groups.get_group(group).size
    num_rows = x.shape[0] if size == 1 else (x.shape[0] + size - 1) // size
    return x.new_empty((num_rows, *x.shape[1:-1], weight.shape[0]))


@all_gather_linear.register_fake
def _all_gather_linear_fake(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    _check_rows("all_gather_linear", x, weight)
    return x.new_empty((num_tokens, *x.shape[1:-1], weight.shape[0]))


@linear_reduce_scatter.register_input_generator
@workloads(*_WORKLOADS)
def _linear_reduce_scatter_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    middle: tuple[int, ...] = (),
    biased: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, *middle, shape[1], generator=random).to(dtype)
    weight = (torch.randn(shape, generator=random) * shape[1] ** -0.5).to(dtype)
    bias = torch.randn(shape[0], generator=random).to(dtype)
    return x, weight, bias if biased else None


@all_gather_linear.register_input_generator
@workloads(
    *_WORKLOADS,
    Workload("padded", "the last row is padding", {"num_tokens": 7, "padding": 1}),
)
def _all_gather_linear_inputs(
    num_tokens: int, dtype: torch.dtype, *, padding: int = 0, **options: Any
) -> tuple[Any, ...]:
    x, weight, bias = _linear_reduce_scatter_inputs(
        num_tokens=num_tokens + padding, dtype=dtype, **options
    )
    return x, num_tokens, weight, bias


def _check_rows(op: str, x: Tensor, weight: Tensor) -> None:
    if x.dim() < 2 or x.shape[-1] != weight.shape[-1]:
        raise ArgumentError(
            f"`{op}` got `x` of shape {list(x.shape)}; it takes rows of {weight.shape[-1]}, two "
            "dims at least."
        )


for _op in (linear_reduce_scatter, all_gather_linear):
    register_panel16(_op)
    # Whether a provider reaches the other ranks is part of a choice.
    groups.subscribe(_op.forget_choices)
