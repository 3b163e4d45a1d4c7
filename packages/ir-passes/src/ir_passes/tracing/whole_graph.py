"""The whole model as one functional graph of ATen and IR ops, ready for IR passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from ir_passes.dialect import Dialect, written_arguments
from ir_passes.guards import ShapeGuard, deferred_guards, guards_since
from ir_passes.metadata import fake_of
from ir_passes.tracing.aten import mode_of_values, trace_to_aten
from ir_passes.tracing.declared_writes import restore_declared_writes
from ir_passes.tracing.donations import functionalize_donations
from ir_passes.tracing.functionalization import Functionalized, Program, functionalize
from ir_passes.tracing.graph_input import GraphInput, label_inputs
from ir_passes.verifier import verify


class Route(StrEnum):
    """How a graph became functional: by one trace, or by AOTAutograd after it."""

    MAKE_FX = "make_fx"
    AOT_AUTOGRAD = "aot_autograd"


@dataclass(frozen=True, slots=True)
class WholeGraph:
    """A traced model.

    Attributes:
        module: the functional graph; donations are marked on its nodes.
        inputs: one per placeholder.
        mode: the mode of its fake values, which holds their shapes.
        route: how it became functional.
        num_donations: calls of `maybe_inplace` that became functional.
        guards: what the trace assumed about sizes, and what torch would check at run time.
        needs_wrapper: the graph alone is not the whole model; see `bind`.
    """

    module: GraphModule
    inputs: tuple[GraphInput, ...]
    mode: FakeTensorMode
    route: Route
    num_donations: int
    guards: tuple[ShapeGuard, ...]
    functionalized: Functionalized | None = None

    @property
    def needs_wrapper(self) -> bool:
        """Whether outputs alias inputs in a way that only AOTAutograd's own code carries out."""
        return self.functionalized is not None and self.functionalized.needs_wrapper

    def bind(self, program: Program) -> Program:
        """A function of the model's inputs that runs `program`, a compiled form of the graph.

        Both take the inputs one by one in the graph's order and return a sequence of outputs.
        """
        return program if self.functionalized is None else self.functionalized.bind(program)


def trace_graph(module: GraphModule, dialect: Dialect | None = None) -> WholeGraph:
    """Trace a graph as a torch.compile backend receives it from Dynamo.

    Donations are validated on the whole graph and become marks. Where only ops that may do so write
    an argument, one trace is all; else AOTAutograd makes the graph functional.

    Raises:
        DonationError: a donated tensor is used later; see `functionalize_donations`.
        TraceError: the model cannot be made functional.
        VerificationError: the graph calls something that is not in the dialect.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    fakes = [node.meta["example_value"] for node in placeholders]
    inputs = tuple(GraphInput.of(node) for node in placeholders)
    return trace_function(torch.fx.Interpreter(module).run, fakes, inputs, dialect)


def trace_function(
    function: Callable[..., Any],
    fakes: Sequence[Any],
    inputs: Sequence[GraphInput] = (),
    dialect: Dialect | None = None,
) -> WholeGraph:
    """Trace any function of fake tensors and symbolic sizes, which takes them one by one.

    Raises:
        DonationError, TraceError, VerificationError: as `trace_graph`.
    """
    dialect = dialect or Dialect()
    mode = mode_of_values(fakes)
    module = trace_to_aten(function, fakes, mode)
    placeholders = module.graph.find_nodes(op="placeholder")
    inputs = tuple(inputs) or tuple(GraphInput(node.name) for node in placeholders)
    label_inputs(module.graph, inputs)
    state = [node for node, each in zip(placeholders, inputs, strict=True) if each.is_state]
    num_donations = functionalize_donations(module.graph, dialect, state)
    module.recompile()
    functionalized = None
    if _has_forbidden_write(module.graph, dialect):
        functionalized = functionalize(module, [fake_of(node) for node in placeholders], mode)
        module = functionalized.module
        label_inputs(module.graph, inputs)
        restore_declared_writes(module.graph, dialect)
        module.recompile()
    verify(module.graph, dialect, changed=())
    return WholeGraph(
        module,
        inputs,
        mode,
        Route.MAKE_FX if functionalized is None else Route.AOT_AUTOGRAD,
        num_donations,
        (*guards_since(mode, 0, "trace"), *deferred_guards(module.graph, mode, "trace")),
        functionalized,
    )


def _has_forbidden_write(graph: Graph, dialect: Dialect) -> bool:
    def is_forbidden(node: Node) -> bool:
        return bool(written_arguments(node)) and not dialect.may_write(node)

    return any(map(is_forbidden, graph.nodes))
