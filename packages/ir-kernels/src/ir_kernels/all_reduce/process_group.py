"""Collectives over torch process groups that give all ranks the same bits.

Backends sum in rings and trees, whose order depends on size and rank. Here every rank gets the
others' values and sums them itself, in order of ranks, in float32 for 16-bit types.
"""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from ir_core import groups
from ir_core.groups import CollectiveError
from ir_kernels.all_reduce.transport import MOST_DIMS, failures
from ir_kernels.arguments import CARRIED, name

_torch: Any = distributed
# The latter name is deprecated from torch 2.13 on.
_all_gather = getattr(_torch, "all_gather_single", None) or _torch.all_gather_into_tensor
_OPS = ("all_reduce", "reduce_scatter", "all_gather")
_HEADER = 4 + MOST_DIMS  # op, dtype, number of dims, number of tokens, sizes


def has_gloo() -> tuple[bool, str]:
    """Whether torch was built with gloo."""
    return distributed.is_gloo_available(), "this torch was built without gloo"


def has_nccl() -> tuple[bool, str]:
    """Whether torch was built with NCCL."""
    return distributed.is_nccl_available(), "this torch was built without NCCL"


def gathered(op: str, provider: str, x: Tensor, axis: str) -> Tensor:
    """Every rank's `x`: a contiguous tensor [ranks, *x.shape].

    Raises:
        CollectiveError: a rank did not come in time or died.
    """
    group = groups.get_group(axis)
    everyones = x.new_empty((group.size, *x.shape))
    if x.numel() > 0:
        with failures(op, provider, axis):
            # As bytes: no backend need know the dtype.
            mine = x.reshape(-1).contiguous().view(torch.uint8)
            _exchange(everyones.view(-1).view(torch.uint8), mine, group, provider)
    return everyones


def gathered_alike(op: str, provider: str, x: Tensor, axis: str, num_tokens: int = -1) -> Tensor:
    """As `gathered`, on the CPU, and ranks that come with something else are an error on all.

    Raises:
        CollectiveError: a rank did not come in time, died, or brought another op, shape or dtype.
    """
    group = groups.get_group(axis)
    mine = _header(op, x, num_tokens)
    # Sizes that differ hang some backends and crash others, so headers, all of one size, go first.
    headers = torch.empty((group.size, _HEADER), dtype=torch.int64)
    with failures(op, provider, axis):
        _exchange(headers.view(-1), torch.tensor(mine), group, provider)
    for rank, theirs in enumerate(headers.tolist()):
        if theirs != mine:
            raise CollectiveError(
                f"`{op}` by {provider} over axis `{axis}`, rank {group.rank} of {group.size}: rank "
                f"{rank} came with {_described(theirs)}, this rank with {_described(mine)}"
            )
    return gathered(op, provider, x, axis)


def sum_in_order(parts: Tensor) -> Tensor:
    """The sum over dim 0 in order, in float32 for 16-bit types, rounded once."""
    total = parts[0].to(torch.promote_types(parts.dtype, torch.float32), copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)


def rows_of_rank(everyones: Tensor, axis: str) -> Tensor:
    """This rank's rows of the sum over dim 0 of `everyones` [ranks, T, ...], zeros behind them."""
    group = groups.get_group(axis)
    num_tokens = everyones.shape[1]
    num_rows = -(-num_tokens // group.size)
    begin = min(group.rank * num_rows, num_tokens)
    there = sum_in_order(everyones[:, begin : begin + num_rows])
    rows = everyones.new_zeros((num_rows, *everyones.shape[2:]))
    rows[: there.shape[0]] = there
    return rows


def first_rows(everyones: Tensor, num_tokens: int) -> Tensor:
    """The ranks' rows in order of ranks, cut to `num_tokens`: contiguous.

    Raises:
        RuntimeError: there are fewer.
    """
    rows = everyones.flatten(0, 1)
    kept = rows.narrow(0, 0, num_tokens)
    return kept if num_tokens == rows.shape[0] else kept.clone()


def _exchange(everyones: Tensor, mine: Tensor, group: groups.Group, provider: str) -> None:
    work = _all_gather(everyones, mine, group=group.transport(provider), async_op=True)
    if work is None:
        raise RuntimeError("this process is none of the group's ranks")
    if provider == "nccl":
        work.wait()  # makes the stream wait; with a timeout it would stop this thread too
    else:
        work.wait(timedelta(seconds=group.timeout_s))


def _header(op: str, x: Tensor, num_tokens: int) -> list[int]:
    fixed = [_OPS.index(op), CARRIED.index(x.dtype), x.ndim, num_tokens]
    return [*fixed, *x.shape, *[0] * (MOST_DIMS - x.ndim)]


def _described(header: list[int]) -> str:
    op, dtype, num_dims, num_tokens, *sizes = header
    rows = f" to {num_tokens} rows" if num_tokens >= 0 else ""
    return f"`{_OPS[op]}` of {name(CARRIED[dtype])} {sizes[:num_dims]}{rows}"
