"""Provider `triton` on a GPU: the conformance suite there, and every op in a captured graph."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_launches import OPS

import ir_core as ir
from ir_core.testing import (
    CHECKS,
    DTYPES,
    Case,
    CheckRejected,
    Outcome,
    cases,
    check_case,
    require_selected,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@dataclass(frozen=True, slots=True)
class GpuCase(Case):
    """A case whose tensors lie on the GPU."""

    def arguments(self, **changed: Any) -> tuple[Any, ...]:
        return on_gpu(Case.arguments(self, **changed))


def on_gpu(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.cuda() if isinstance(each, Tensor) else each for each in arguments)


def accepted_cases(op: ir.IrOp) -> list[GpuCase]:
    """The cases that the provider takes: of others, native would be checked in its place."""
    every = [
        GpuCase(case.implementation, case.workload, case.dtype, case.layout)
        for case in cases([op], providers=["triton"])
    ]
    return [case for case in every if is_accepted(case)]


def is_accepted(case: Case) -> bool:
    try:
        require_selected(case.implementation, case.arguments())
    except CheckRejected:
        return False
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("op", OPS)
def test_kernels_conform_on_the_gpu(op: str, registry: ir.Registry) -> None:
    findings = [
        check_case(case, check)
        for case in accepted_cases(registry[op])
        for check in CHECKS
        if check.applies(case) and (check.num_dtypes is None or case.workload.name == "odd-count")
    ]
    failed = [each for each in findings if each.outcome is Outcome.FAILED]
    assert not failed, failed
    assert any(each.outcome is Outcome.PASSED for each in findings)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_captured_graph_computes_what_eager_does(
    op: str, dtype: torch.dtype, registry: ir.Registry
) -> None:
    """Other values of the same shapes, lengths of requests among them, in the same graph."""
    implementation = registry[op].implementations["triton"]
    inputs: dict[str, Any] = {"num_tokens": 7, "dtype": dtype}
    longer = {"context": 43} if op == "paged_attention" else {}
    first = on_gpu(implementation.op.generate_inputs(**inputs))
    second = on_gpu(implementation.op.generate_inputs(**inputs, seed=1, **longer))
    expected = call(implementation, tuple(copies(second)))
    call(implementation, tuple(copies(first)))
    static = tuple(copies(first))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(implementation, static)
    for mine, new in zip(static, second, strict=True):
        if isinstance(mine, Tensor):
            mine.copy_(new)
    graph.replay()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def copies(arguments: tuple[Any, ...]) -> list[Any]:
    return [each.clone() if isinstance(each, Tensor) else each for each in arguments]


def call(implementation: ir.Implementation, arguments: tuple[Any, ...]) -> list[Tensor]:
    """What an implementation returns, and the arguments that its op writes."""
    returned = implementation.fn(*arguments)
    named = dict(zip(implementation.op.schema.names, arguments, strict=False))
    written = [named[name] for name in implementation.op.mutates]
    outputs = [] if returned is None else [returned] if isinstance(returned, Tensor) else returned
    return [*outputs, *written]
