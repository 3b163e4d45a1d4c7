"""Traces a model from example arguments: Dynamo's trace, then the whole graph. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import CodeType
from typing import Any

import sympy
import torch
from torch import SymInt
from torch._subclasses import FakeTensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from ir_passes.config import DynamicShapesType
from ir_passes.dialect import Dialect
from ir_passes.errors import TraceError
from ir_passes.tracing.dynamic_dims import (
    Call,
    DynamicDim,
    DynamicDims,
    mark_dynamic_dims,
    shapes_mode,
    target_of,
)
from ir_passes.tracing.graph_input import GraphInput, readable_path
from ir_passes.tracing.whole_graph import WholeGraph, trace_graph

_SIZE = re.compile(r"(.+)\.size\(\)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """A traced model, and what is needed to call a compiled form of it as the model is called.

    Attributes:
        whole: the functional graph.
        function: the module or function that was traced.
        args: the example arguments, with their dynamic dims marked.
        kwargs: the same by name.
        symbols: by label of a dynamic dim, the symbols that stand for its size; none for a label
            whose size turned out to be fixed.
        dims: the dims that vary.
        seconds: of Dynamo and of the trace after it.
    """

    whole: WholeGraph
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    symbols: Mapping[str, frozenset[sympy.Symbol]]
    dims: tuple[DynamicDim, ...]
    seconds: Mapping[str, float]
    capture: Any = field(repr=False)

    @property
    def bytecode(self) -> CodeType:
        """What Dynamo made of the function: unpacks arguments, calls the graph, packs results."""
        code: CodeType = self.capture.graph_capture_output.bytecode
        return code

    @property
    def global_names(self) -> Mapping[str, Any]:
        """The globals of the function."""
        names: Mapping[str, Any] = self.capture.graph_capture_output.f_globals
        return names

    @property
    def num_outputs(self) -> int:
        """How many outputs Dynamo's graph has."""
        output = self.capture.backend_input.graph_module.graph.output_node()
        return len(output.args[0])

    def call_with(self, program: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
        """Dynamo's function, with the function's own signature, around another program.

        The program takes all inputs of the graph, the model's tensors too.
        """
        function: Callable[..., Any] = self.capture.forward_callable(compiled_fn=program)
        owner = getattr(target_of(self.function), "__self__", None)
        return function if owner is None else partial(function, owner)


def trace_model(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_dims: DynamicDims | None = None,
    shapes: DynamicShapesType = DynamicShapesType.UNBACKED,
    dialect: Dialect | None = None,
) -> WholeGraph:
    """The functional graph of a module or a function; the arguments are examples.

    Raises:
        TraceError, DonationError, VerificationError: as `trace_call`.
    """
    trace = trace_call(
        function, args, kwargs, dynamic_dims=dynamic_dims, shapes=shapes, dialect=dialect
    )
    return trace.whole


def trace_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_dims: DynamicDims | None = None,
    shapes: DynamicShapesType = DynamicShapesType.UNBACKED,
    dialect: Dialect | None = None,
) -> ModelTrace:
    """Trace a module or a function, and keep how it is called; the arguments are examples.

    Nothing is executed, so neither a cache nor an argument changes. Dims with one label count as
    equal from the first op on.

    Raises:
        TraceError: `dynamic_dims` does not fit the arguments, a tensor is passed twice, there is no
            tensor to trace, or Dynamo cannot trace a line, which it names.
        DonationError, VerificationError: as `ir_passes.tracing.whole_graph.trace_graph`.
    """
    started = perf_counter()
    _refuse_repeated(function, args, kwargs or {})
    call = mark_dynamic_dims(target_of(function), args, kwargs or {}, dynamic_dims or {}, shapes)
    with shapes_mode(shapes), torch.no_grad():
        capture = _capture(function, call)
        module: GraphModule = capture.backend_input.graph_module
        traced = perf_counter()
        symbols = _equate(module, call.dims)
        whole = trace_graph(module, dialect)
    seconds = {"dynamo": traced - started, "trace": perf_counter() - traced}
    return ModelTrace(whole, function, call.args, call.kwargs, symbols, call.dims, seconds, capture)


def _refuse_repeated(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """A tensor in two places would become one input, whatever later calls pass there."""
    leaves = [each for each in tree_leaves((args, dict(kwargs))) if isinstance(each, torch.Tensor)]
    owned = (
        (*function.parameters(), *function.buffers())
        if isinstance(function, torch.nn.Module)
        else ()
    )
    seen = {id(each) for each in owned}
    for each in leaves:
        if id(each) in seen:
            raise TraceError(
                f"A tensor of shape {tuple(each.shape)} is passed twice, or belongs to the model; "
                "pass examples that are tensors of their own."
            )
        seen.add(id(each))


def _capture(function: Callable[..., Any], call: Call) -> Any:
    # They cost a second, and only what is compiled needs them.
    from torch._dynamo import config  # noqa: PLC0415
    from torch._dynamo.convert_frame import fullgraph_capture  # noqa: PLC0415
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415
    from torch._dynamo.utils import get_metrics_context  # noqa: PLC0415

    # Torch would take a dim for dynamic whose size was another one in an earlier trace.
    with get_metrics_context(), config.patch(automatic_dynamic_shapes=False):
        try:
            traced = fullgraph_capture(function, call.args, call.kwargs)
        except (TorchDynamoException, GuardOnDataDependentSymNode) as error:
            raise TraceError(f"The model cannot be traced: {error}") from error
    if traced.backend_input is None:
        raise TraceError("The model calls no op on a tensor, so there is nothing to compile.")
    return traced


def _equate(
    module: GraphModule, dims: Sequence[DynamicDim]
) -> Mapping[str, frozenset[sympy.Symbol]]:
    """Let the sizes of one label be one symbol where Dynamo saw no reason yet.

    Returns all symbols that stood for each label's size.
    """
    fakes: dict[str, Any] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        fakes.setdefault(GraphInput.of(node).path, node.meta["example_value"])
    first: dict[str, int | SymInt] = {}
    symbols: dict[str, set[sympy.Symbol]] = {each.label: set() for each in dims}
    for each in dims:
        if each.path in fakes:
            size = fakes[each.path].shape[each.dim]
            if isinstance(size, SymInt) and size.node.expr.is_Symbol:
                symbols[each.label].add(size.node.expr)
            torch._check(first.setdefault(each.label, size) == size)
    for path, dim, symbol in _sizes_by_source(fakes.values()):
        for each in dims:
            if (each.path, each.dim) == (path, dim):
                symbols[each.label].add(symbol)
    return {label: frozenset(found) for label, found in symbols.items()}


def _sizes_by_source(fakes: Iterable[Any]) -> Iterator[tuple[str, int, sympy.Symbol]]:
    """Path, dim and symbol of each size of an argument; a guard may be all that it occurs in."""
    modes = (each.fake_mode for each in fakes if isinstance(each, FakeTensor))
    environment = next((mode.shape_env for mode in modes), None)
    known = environment.var_to_sources if environment is not None else {}
    for symbol, sources in known.items():
        for source in sources:
            size = _SIZE.fullmatch(str(source.name))
            if size is not None:
                yield readable_path(size[1]), int(size[2]), symbol
