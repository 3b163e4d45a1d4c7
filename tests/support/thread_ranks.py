"""Ranks as threads of one process: collectives meet at a barrier and read what all ranks posted."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.groups import Group, scoped_groups

T = TypeVar("T")

_PROVIDER = "threads"
_TIMEOUT_S = 60


class ThreadRanks:
    """`size` ranks; `run` calls a function once for each, all at the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self._posted: list[Tensor] = [torch.empty(0)] * size
        self._rank: ContextVar[int] = ContextVar("rank")

    def run(self, function: Callable[[int], T]) -> list[T]:
        """What `function(rank)` returns, in order of ranks; raises what a rank raises."""
        with ThreadPoolExecutor(self._size) as pool:
            # Copied, because scoped priorities follow the context and a thread starts without.
            futures = [
                pool.submit(copy_context().run, self._of_rank, function, rank)
                for rank in range(self._size)
            ]
        errors = [error for each in futures if (error := each.exception()) is not None]
        for error in sorted(
            errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)
        ):
            raise error
        return [each.result() for each in futures]

    def all_reduce(self, x: Tensor, group: str = "tp") -> Tensor:
        """The sum in order of ranks."""
        return torch.stack(self._exchange(x, group)).sum(0)

    def all_gather(self, x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
        """The rows in order of ranks."""
        return torch.cat(self._exchange(x, group))[:num_tokens]

    def all_reduce_add_rms_norm(
        self,
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
        group: str = "tp",
    ) -> tuple[Tensor, Tensor]:
        """The norm of the sum, natively."""
        total = self.all_reduce(x, group)
        return ir.ops.fused_add_rms_norm.native(total, x_residual, weight, epsilon, variance_size)

    def _of_rank(self, function: Callable[[int], T], rank: int) -> T:
        self._rank.set(rank)
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                return function(rank)
        except BaseException:
            self._barrier.abort()
            raise

    def _exchange(self, x: Tensor, group: str) -> list[Tensor]:
        if group != "tp":
            raise ValueError(f"the ranks are those of `tp`, not of `{group}`")
        self._posted[self._rank.get()] = x
        self._barrier.wait()
        everything = [each.clone() for each in self._posted]
        self._barrier.wait()
        return everything


@contextmanager
def thread_ranks(size: int) -> Generator[ThreadRanks]:
    """`size` ranks whose collectives are in force inside, and known to the ops only there."""
    ranks = ThreadRanks(size)
    with pytest.MonkeyPatch.context() as patch:
        providers: dict[str, Callable[..., Any]] = {
            "all_reduce": ranks.all_reduce,
            "all_gather": ranks.all_gather,
            "all_reduce_add_rms_norm": ranks.all_reduce_add_rms_norm,
        }
        for name, function in providers.items():
            op = ir.registry()[name]
            added = replace(op.native, provider=_PROVIDER, fn=function)
            known = {**op.implementations, _PROVIDER: added}
            patch.setattr(op, "_implementations", known)
        # Threads share a process, which is one rank for groups: only their number matters here.
        group = Group("tp", 0, size)
        with scoped_groups(group), ir.priority({name: [_PROVIDER] for name in providers}):
            yield ranks
    ir.registry().forget_choices()
