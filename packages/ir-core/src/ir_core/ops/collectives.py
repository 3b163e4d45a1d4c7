"""Collectives over a logical axis, as ops. Native is their meaning in a world of one rank.

What an axis is in this process stands in `ir_core.groups`; of that a graph holds the size only.
"""

from typing import Any

import torch
from torch import Tensor

from ir_core import groups
from ir_core.default_registry import register_op
from ir_core.groups import CollectiveError
from ir_core.ops.workload import Workload, workloads

_WORKLOADS = (
    Workload("one-row", "decode of one request", {"num_tokens": 1, "hidden": 576}, bench=True),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "hidden": 576}, bench=True),
    Workload("odd", "a count that no world size divides", {"num_tokens": 7, "hidden": 37}),
)


@register_op(opaque=True, batch_invariant=True)
def all_reduce(x: Tensor, group: str = "tp") -> Tensor:
    """The sum of every rank's `x` over the logical axis `group`: a new tensor like `x`, contiguous.

    Ranks agree bitwise: an implementation sums in order of ranks, in float32 for 16-bit types.

    Raises:
        CollectiveError: a rank did not come, died, or came with something else; names it.
    """
    refuse_several_ranks("all_reduce", group)
    return x.clone(memory_format=torch.contiguous_format)


@register_op(opaque=True, batch_invariant=True)
def reduce_scatter(x: Tensor, group: str = "tp") -> Tensor:
    """This rank's rows of the sum of every rank's `x` [T, ...]: [ceil(T / world), ...], contiguous.

    Rows are dealt in order of ranks; those past T are zero, so padding never leaks. The sum and
    the errors are those of `all_reduce`.
    """
    refuse_several_ranks("reduce_scatter", group)
    return x.clone(memory_format=torch.contiguous_format)


@register_op(opaque=True, batch_invariant=True, token_dims={"num_tokens": ()})
def all_gather(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    """The ranks' rows of `x` in order of ranks, cut to the true count: [num_tokens, ...].

    A new contiguous tensor. `num_tokens` is at most world * rows; more is a RuntimeError. The other
    errors are those of `all_reduce`.
    """
    refuse_several_ranks("all_gather", group)
    return x.narrow(0, 0, num_tokens).clone(memory_format=torch.contiguous_format)


def refuse_several_ranks(op: str, axis: str) -> None:
    """Raise CollectiveError, naming what reaches them, unless the axis is a world of one rank."""
    group = groups.get_group(axis)
    if group.size > 1:
        raise CollectiveError(
            f"`{op}` by native over axis `{axis}`, rank {group.rank} of {group.size}: native is a "
            f"world of one rank. Put a provider that reaches the others first, such as `shm` or "
            f"`gloo`, and see `ir explain {op}` for why it was passed over."
        )


@all_reduce.register_fake
def _all_reduce_fake(x: Tensor, group: str = "tp") -> Tensor:
    return x.new_empty(x.shape)


@reduce_scatter.register_fake
def _reduce_scatter_fake(x: Tensor, group: str = "tp") -> Tensor:
    size = groups.get_group(group).size
    num_rows = x.shape[0] if size == 1 else (x.shape[0] + size - 1) // size
    return x.new_empty((num_rows, *x.shape[1:]))


@all_gather.register_fake
def _all_gather_fake(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    return x.new_empty((num_tokens, *x.shape[1:]))


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


for _op in (all_reduce, reduce_scatter, all_gather):
    # Whether a provider reaches the other ranks is part of a choice.
    groups.subscribe(_op.forget_choices)
