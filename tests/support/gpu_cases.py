"""Cases of the conformance suite whose tensors lie on a GPU, and calls that a graph can hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import ir_core as ir
from ir_core.testing import (
    CHECKS,
    Case,
    CheckRejected,
    Finding,
    cases,
    check_case,
    require_selected,
)


@dataclass(frozen=True, slots=True)
class GpuCase(Case):
    """A case whose tensors lie on the GPU."""

    def arguments(self, **changed: Any) -> tuple[Any, ...]:
        """As a case's, moved."""
        return on_gpu(Case.arguments(self, **changed))


def on_gpu(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with their tensors moved to the GPU."""
    return tuple(each.cuda() if isinstance(each, Tensor) else each for each in arguments)


def check_on_gpu(op: ir.IrOp, provider: str) -> list[Finding]:
    """What the suite finds in all cases that the provider takes.

    Of others, native would be checked in its place.
    """
    every = [
        GpuCase(case.implementation, case.workload, case.dtype, case.layout)
        for case in cases([op], providers=[provider])
    ]
    return [
        check_case(case, check)
        for case in every
        if is_accepted(case)
        for check in CHECKS
        if check.applies(case) and (check.num_dtypes is None or case.workload.name == "odd-count")
    ]


def is_accepted(case: Case) -> bool:
    """Whether the case's implementation is the one that its arguments select."""
    try:
        require_selected(case.implementation, case.arguments())
    except CheckRejected:
        return False
    return True


def assert_captured_as_eager(
    implementation: ir.Implementation, first: Sequence[Any], second: Sequence[Any]
) -> None:
    """A graph captured on `first` computes for the values of `second` what eager does."""
    expected = call(implementation, copies(second))
    call(implementation, copies(first))
    static = copies(first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(implementation, static)
    for mine, new in zip(static, second, strict=True):
        if isinstance(mine, Tensor):
            mine.copy_(new)
    graph.replay()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def copies(arguments: Sequence[Any]) -> list[Any]:
    """Arguments with clones of their tensors."""
    return [each.clone() if isinstance(each, Tensor) else each for each in arguments]


def call(implementation: ir.Implementation, arguments: Sequence[Any]) -> list[Tensor]:
    """What an implementation returns, and the arguments that its op writes."""
    returned = implementation.fn(*arguments)
    named = dict(zip(implementation.op.schema.names, arguments, strict=False))
    written = [named[name] for name in implementation.op.mutates]
    outputs = [] if returned is None else [returned] if isinstance(returned, Tensor) else returned
    return [*outputs, *written]
