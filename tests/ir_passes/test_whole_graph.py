"""A graph that torch.compile hands to a backend is traced, rewritten, bound and run."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import ir_core as ir
from ir_passes.base import PassContext
from ir_passes.default_pipeline import PASSES
from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.pipeline import Pipeline
from ir_passes.printer import print_graph
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.whole_graph import Route, WholeGraph, trace_graph

from .graphs import calls, node_calling, random_tensors, trace

ROWS = ("T", 8)
FUSED = ir.ops.fused_add_rms_norm


class Backend:
    """Traces, runs all passes with all checks, and interprets what is left."""

    def __init__(self) -> None:
        self.graphs: list[WholeGraph] = []

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        whole = trace_graph(module)
        checked = RunOptions(verify_each=True)
        run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext(), checked)
        self.graphs.append(whole)
        return whole.bind(whole.module)


def _functional(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return ir.ops.rms_norm(total.view(-1, 8), None, 1e-5), total


def _in_place(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    h[:, 1:3] = r[:, :2]
    r.mul_(2)
    return ir.ops.rms_norm(h + r, None, 1e-5), h


def _view_of_input(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    h = (x * 2).add_(r)
    return h, x[:, 4:]


@pytest.mark.parametrize("model", [_functional, _in_place, _view_of_input])
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_function_is_the_function(model: Callable[..., Any], dynamic: bool | None) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend=Backend(), fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for tokens in (3, 6):
            mine, theirs = (random_tensors(ROWS, ROWS, tokens=tokens) for _ in range(2))
            torch.testing.assert_close(compiled(*mine), model(*theirs))
            torch.testing.assert_close(mine, theirs)


def test_module_with_weights_is_compiled_with_its_donations() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

        def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
            for _ in range(2):
                x, r = FUSED.maybe_inplace(x * 2, r, self.weight, 1e-5)
            return x, r

    backend, model = Backend(), Model()
    torch.compiler.reset()
    with torch.no_grad():
        got = torch.compile(model, backend=backend, fullgraph=True)(*random_tensors(ROWS, ROWS))
        torch.testing.assert_close(got, model(*random_tensors(ROWS, ROWS)))
    (whole,) = backend.graphs
    assert (whole.num_donations, whole.route) == (2, Route.MAKE_FX)
    assert "self.weight" in [each.path for each in whole.inputs]


def test_donation_error_reaches_the_caller_of_compile() -> None:
    def model(x: Tensor, r: Tensor) -> Tensor:
        h = x * 2
        out, _ = FUSED.maybe_inplace(h, r, None, 1e-5)
        return out + h

    torch.compiler.reset()
    line = model.__code__.co_firstlineno
    with torch.no_grad(), pytest.raises(Exception, match=rf"{__file__}:{line + 3} uses") as error:
        torch.compile(model, backend=Backend(), fullgraph=True)(*random_tensors(ROWS, ROWS))
    assert f"took as `x` at {__file__}:{line + 2}" in str(error.value)


def test_input_that_requires_grad_is_an_error_while_grad_is_on() -> None:
    torch.compiler.reset()
    x, r = random_tensors(ROWS, ROWS)
    with pytest.raises(Exception, match="require grad while grad mode is on"):
        torch.compile(_functional, backend=Backend(), fullgraph=True)(x.requires_grad_(), r)


def test_copy_of_a_graph_keeps_marks_fakes_and_text() -> None:
    whole = trace(lambda x, r: FUSED.maybe_inplace(x * 2, r, None, 1e-5), ROWS, ROWS)
    module = copy.deepcopy(whole.module)
    node = node_calling(module, "fused_add_rms_norm")
    assert donated_arguments(node, Dialect()) == ("x", "x_residual")
    assert print_graph(module.graph) == print_graph(whole.module.graph)
    node.target = ir.ops.rms_norm.torch_op
    assert "fused_add_rms_norm" in calls(whole.module)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda h: h.view(-1),
    "slice": lambda h: h[:, 2:5],
    "transpose": lambda h: h.t(),
    "half": lambda h: h.split([4, 4], dim=1)[1],
    "strided": lambda h: h.as_strided((2, 2), (8, 3), 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("is_input", [False, True])
def test_functional_overload_leaves_every_view_alone(
    view: Callable[[Tensor], Tensor], is_input: bool
) -> None:
    def model(x: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        h = x if is_input else x * 3
        v = view(h)
        out, residual = FUSED(h, r + v.sum(), None, 1e-5)
        return out, residual, v + 1

    whole = trace(model, (5, 8), (5, 8))
    run_pipeline(Pipeline.of(*PASSES), whole.module, PassContext(), RunOptions(verify_each=True))
    inputs = random_tensors(ROWS, ROWS)
    with ir.priority({"fused_add_rms_norm": ["native"]}):
        wanted = model(*inputs)
    providers = FUSED.supported_providers()
    for provider in providers:
        with ir.priority({"fused_add_rms_norm": [provider]}):
            torch.testing.assert_close(whole.module(*inputs), wanted)
    torch.testing.assert_close(inputs, random_tensors(ROWS, ROWS))
