"""Provider `triton` on a GPU: the conformance suite there, and every op in a captured graph."""

from typing import Any

import pytest
import torch
from gpu_cases import assert_captured_as_eager, check_on_gpu, on_gpu
from triton_launches import OPS

import ir_core as ir
from ir_core.testing import DTYPES, Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("op", OPS)
def test_kernels_conform_on_the_gpu(op: str, registry: ir.Registry) -> None:
    findings = check_on_gpu(registry[op], "triton")
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
    assert_captured_as_eager(implementation, first, second)
