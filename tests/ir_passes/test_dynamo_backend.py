"""torch.compile with backend `ir`: Dynamo's guards and recompiles stay as they are."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import ir_core as ir

from .test_model_trace import Model, arguments


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_model_computes_the_same(backend: str) -> None:
    model = Model(2)
    compiled = torch.compile(copy.deepcopy(model), backend="ir", options={"backend": backend})
    with torch.no_grad():
        for size in (6, 7, 1, 9):
            torch.testing.assert_close(
                compiled(*arguments(size)), model(*arguments(size)), rtol=1e-5, atol=1e-5
            )


def test_branch_on_a_value_outside_the_graph_is_compiled_again() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.is_on = True

        def forward(self, x: Tensor) -> Tensor:
            return ir.ops.silu_and_mul(x) if self.is_on else x * 3

    model = Switched()
    compiled = torch.compile(model, backend="ir", options={"backend": "eager"})
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
        model.is_on = False
        assert torch.equal(compiled(x), x * 3)


def test_input_that_needs_a_gradient_is_refused() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="ir", options={"backend": "eager"})
    with pytest.raises(BackendCompilerFailed, match="requires grad while grad mode is on"):
        compiled(torch.ones(3, requires_grad=True))
    with torch.no_grad():
        assert torch.equal(compiled(torch.ones(3, requires_grad=True)), torch.full((3,), 2.0))
