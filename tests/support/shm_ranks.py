"""Ranks as threads of one process that meet in shared memory, by the provider that ships."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import pytest
import torch

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_kernels import library
from ir_kernels.all_reduce.segment import new_name, open_segment

T = TypeVar("T")

_TIMEOUT_S = 20.0
_OPS = ("all_reduce", "reduce_scatter", "all_gather", "linear_reduce_scatter", "all_gather_linear")


class ThreadsSegment:
    """What the group holds for `shm`: to each thread, the segment that it opened."""

    def __init__(self) -> None:
        self._own = threading.local()

    @property
    def handle(self) -> int:
        handle: int = self._own.handle
        return handle

    @contextmanager
    def opened(self, name: str, rank: int, size: int) -> Generator[None]:
        segment = open_segment(
            name, "tp", rank, size, open_timeout_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S
        )
        self._own.handle = segment.handle
        try:
            yield
        finally:
            segment.close()


def run_on_shm_ranks(size: int, function: Callable[[int], T]) -> list[T]:
    """What `function(rank)` returns, in order of ranks; raises what the first of them raises.

    Skips the test where the C++ library was not built.
    """
    is_there, reason = library.availability()
    if not is_there:
        pytest.skip(reason)
    segment, name = ThreadsSegment(), new_name()

    def of_rank(rank: int) -> T:
        torch.set_num_threads(1)
        with torch.inference_mode(), segment.opened(name, rank, size):
            return function(rank)

    # Threads share a process, which is one rank for groups: only their number matters here.
    group = Group("tp", 0, size, {"shm": segment}, timeout_s=_TIMEOUT_S)
    priority = ir.priority({name: ["shm"] for name in _OPS})
    with scoped_groups(group), priority, ThreadPoolExecutor(size) as pool:
        # Copied, because scoped priorities follow the context and a thread starts without.
        futures = [pool.submit(copy_context().run, of_rank, rank) for rank in range(size)]
    return [each.result() for each in futures]
