"""Traces a model from example arguments: Dynamo's trace, then the whole graph. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import SymInt
from torch.fx import GraphModule

from ir_passes.config import DynamicShapesType
from ir_passes.dialect import Dialect
from ir_passes.errors import TraceError
from ir_passes.tracing.dynamic_dims import (
    Call,
    DynamicDim,
    DynamicDims,
    mark_dynamic_dims,
    shapes_mode,
)
from ir_passes.tracing.graph_input import GraphInput
from ir_passes.tracing.whole_graph import WholeGraph, trace_graph


def trace_model(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_dims: DynamicDims | None = None,
    shapes: DynamicShapesType = DynamicShapesType.UNBACKED,
    dialect: Dialect | None = None,
) -> WholeGraph:
    """Trace a module or a function to one functional graph; the arguments are examples.

    Nothing is executed, so neither a cache nor an argument changes. Dims with one label count as
    equal from the first op on.

    Raises:
        TraceError: `dynamic_dims` does not fit the arguments, or there is no tensor to trace.
        DonationError, VerificationError: as `ir_passes.tracing.whole_graph.trace_graph`.
        torch._dynamo.exc.Unsupported: what Dynamo cannot trace, with the line.
    """
    target = function.forward if isinstance(function, torch.nn.Module) else function
    call = mark_dynamic_dims(target, args, kwargs or {}, dynamic_dims or {}, shapes)
    with shapes_mode(shapes), torch.no_grad():
        module = _trace(function, call)
        _equate(module, call.dims)
        return trace_graph(module, dialect)


def _trace(function: Callable[..., Any], call: Call) -> GraphModule:
    # They cost a second, and only what is compiled needs them.
    from torch._dynamo.convert_frame import fullgraph_capture  # noqa: PLC0415
    from torch._dynamo.utils import get_metrics_context  # noqa: PLC0415

    with get_metrics_context():
        traced = fullgraph_capture(function, call.args, call.kwargs)
    if traced.backend_input is None:
        raise TraceError("The model calls no op on a tensor, so there is nothing to compile.")
    return traced.backend_input.graph_module


def _equate(module: GraphModule, dims: Sequence[DynamicDim]) -> None:
    """Let the sizes of one label be one symbol where Dynamo saw no reason yet."""
    fakes: dict[str, Any] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        fakes.setdefault(GraphInput.of(node).path, node.meta["example_value"])
    first: dict[str, int | SymInt] = {}
    for each in dims:
        if each.path in fakes:
            size = fakes[each.path].shape[each.dim]
            torch._check(first.setdefault(each.label, size) == size)
