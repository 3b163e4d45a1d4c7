"""Collectives over a logical axis, as ops. Native is their meaning in a world of one rank."""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.ops.workload import Workload, workloads

_WORKLOADS = (
    Workload("one-row", "decode of one request", {"num_tokens": 1, "hidden": 576}, bench=True),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "hidden": 576}, bench=True),
    Workload("odd", "a count that no world size divides", {"num_tokens": 7, "hidden": 37}),
)


@register_op(opaque=True, batch_invariant=True)
def all_reduce(x: Tensor, group: str = "tp") -> Tensor:
    """The sum of every rank's `x` over the logical axis `group`: a new tensor like `x`, contiguous.

    Ranks agree bitwise: an implementation sums in a fixed order of ranks.
    """
    return x.clone(memory_format=torch.contiguous_format)


@register_op(opaque=True, batch_invariant=True)
def reduce_scatter(x: Tensor, group: str = "tp") -> Tensor:
    """This rank's rows of the sum of every rank's `x` [T, ...]: [ceil(T / world), ...], contiguous.

    Rows are dealt in order of ranks; those past T are zero, so padding never leaks.
    """
    return x.clone(memory_format=torch.contiguous_format)


@register_op(opaque=True, batch_invariant=True, token_dims={"num_tokens": ()})
def all_gather(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    """The ranks' rows of `x` in order of ranks, cut to the true count: [num_tokens, ...].

    A new contiguous tensor. `num_tokens` is at most world * rows; more is a RuntimeError.
    """
    return x.narrow(0, 0, num_tokens).clone(memory_format=torch.contiguous_format)


@all_reduce.register_input_generator
@workloads(*_WORKLOADS)
def _all_reduce_inputs(
    num_tokens: int, dtype: torch.dtype, *, hidden: int = 64, seed: int = 0
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(num_tokens, hidden, generator=random).to(dtype),)


@reduce_scatter.register_input_generator
@workloads(*_WORKLOADS)
def _reduce_scatter_inputs(num_tokens: int, dtype: torch.dtype, **shape: Any) -> tuple[Any, ...]:
    return _all_reduce_inputs(num_tokens=num_tokens, dtype=dtype, **shape)


@all_gather.register_input_generator
@workloads(
    *_WORKLOADS,
    Workload("padded", "the last row is padding", {"num_tokens": 7, "padding": 1}),
)
def _all_gather_inputs(
    num_tokens: int, dtype: torch.dtype, *, padding: int = 0, **shape: Any
) -> tuple[Any, ...]:
    (x,) = _all_reduce_inputs(num_tokens=num_tokens + padding, dtype=dtype, **shape)
    return x, num_tokens
