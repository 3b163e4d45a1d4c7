"""Small graphs for tests: traced from a function, with `"T"` for a token count that may be any."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_passes.base import Pass, PassContext
from ir_passes.dialect import Dialect
from ir_passes.pipeline import Pipeline
from ir_passes.printer import print_graph
from ir_passes.report import PipelineReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.graph_input import GraphInput
from ir_passes.tracing.whole_graph import WholeGraph, trace_function

Shape = Sequence[int | str]
_GOLDEN = Path(__file__).parent / "golden"


class FakeInputs:
    """Makes fake tensors that share one unbacked token count."""

    def __init__(self) -> None:
        environment = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=environment)
        # No op of the graph makes this symbol: it comes with the inputs.
        with environment.ignore_fresh_unbacked_symbols():
            self.tokens = environment.create_unbacked_symint()
        torch._check(self.tokens >= 0)

    def tensor(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        sizes = [self.tokens if each == "T" else int(each) for each in shape]
        with self.mode:
            return torch.empty(sizes, dtype=dtype)


def trace(
    function: Callable[..., Any],
    *shapes: Shape,
    dtype: torch.dtype = torch.float32,
    names: str = "",
    state: str = "",
    dialect: Dialect | None = None,
) -> WholeGraph:
    """Trace a function of tensors of these shapes; `names` and `state` are words."""
    fakes = FakeInputs()
    inputs = [
        GraphInput(name, is_state=name in state.split())
        for name in names.split() or [f"in{index}" for index in range(len(shapes))]
    ]
    tensors = [fakes.tensor(shape, dtype) for shape in shapes]

    def returning_tuple(*args: Any) -> tuple[Any, ...]:
        result = function(*args)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return trace_function(returning_tuple, tensors, inputs, dialect)


def apply(whole: WholeGraph, *passes: Pass, dialect: Dialect | None = None) -> PipelineReport:
    """Run passes with every check on."""
    context = PassContext(dialect or Dialect())
    return run_pipeline(Pipeline.of(*passes), whole.module, context, RunOptions(verify_each=True))


def random_tensors(*shapes: Shape, tokens: int = 5, dtype: torch.dtype = torch.float32):
    """One tensor of small numbers per shape, always the same."""
    generator = torch.Generator().manual_seed(0)
    sizes = [[tokens if each == "T" else int(each) for each in shape] for shape in shapes]
    return [torch.randn(each, generator=generator).to(dtype) for each in sizes]


def calls(module: GraphModule) -> list[str]:
    """Names of the ops that a graph calls, in order."""
    return [
        str(node.target._schema.name.partition("::")[2])
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


def node_calling(module: GraphModule, name: str) -> Node:
    """The only node that calls an op."""
    (node,) = [
        node
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._opname == name
    ]
    return node


def check_golden(name: str, module: GraphModule, dialect: Dialect | None = None) -> None:
    """Compare a graph's text with `golden/<name>.txt`; IR_UPDATE_GOLDENS=1 writes it anew."""
    path = _GOLDEN / f"{name}.txt"
    text = print_graph(module.graph, dialect)
    if os.environ.get("IR_UPDATE_GOLDENS"):
        path.write_text(text)
    wanted = path.read_text()
    lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), "golden", "now", n=2)
    assert text == wanted, "\n".join(lines) + "\nSet IR_UPDATE_GOLDENS=1 to accept it."
