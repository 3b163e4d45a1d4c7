"""Copies of graphs: the same for other passes, and one for a single token count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_passes.errors import CompileError
from ir_passes.metadata import fake_of
from ir_passes.tracing.aten import trace_to_aten


def copy_module(module: GraphModule) -> GraphModule:
    """A graph of its own on the same constants and fake values."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def specialize(module: GraphModule, values: Mapping[sympy.Symbol, int]) -> GraphModule:
    """The same graph with static shapes, traced again on fakes that have these sizes.

    Raises:
        CompileError: a symbol without a value.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    placeholders = module.graph.find_nodes(op="placeholder")
    fakes = _static_fakes([fake_of(node) for node in placeholders], values, mode)
    places = [index for index, fake in enumerate(fakes) if isinstance(fake, Tensor)]

    def run(*tensors: Tensor) -> Any:
        arguments = list(fakes)
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        return Interpreter(module).run(*arguments)

    traced = trace_to_aten(run, [fakes[place] for place in places], mode)
    _add_number_inputs(traced, fakes)
    return traced


def _static_fakes(
    values: Sequence[Any], sizes: Mapping[sympy.Symbol, int], mode: FakeTensorMode
) -> list[Any]:
    """Numbers for sizes, and fakes that share memory where the given ones do."""
    by_storage: dict[int, list[int]] = defaultdict(list)
    result: list[Any] = list(values)
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            by_storage[value.untyped_storage()._cdata].append(index)
        elif isinstance(value, SymInt):
            result[index] = _number(value, sizes)
    for indices in by_storage.values():
        _share(indices, values, result, sizes, mode)
    return result


def _share(
    indices: Sequence[int],
    values: Sequence[Any],
    result: list[Any],
    sizes: Mapping[sympy.Symbol, int],
    mode: FakeTensorMode,
) -> None:
    layouts = {index: _layout(values[index], sizes) for index in indices}
    if len({values[index].dtype for index in indices}) > 1:
        raise CompileError("Inputs of one piece share memory in two dtypes.")
    first = values[indices[0]]
    extent = max(map(_extent, layouts.values()))
    with mode:
        base = torch.empty(extent, dtype=first.dtype, device=first.device)
        for index, (shape, strides, offset) in layouts.items():
            result[index] = base.as_strided(shape, strides, offset)


def _layout(value: Tensor, sizes: Mapping[sympy.Symbol, int]) -> tuple[list[int], list[int], int]:
    shape = [_number(each, sizes) for each in value.shape]
    strides = [_number(each, sizes) for each in value.stride()]
    return shape, strides, _number(value.storage_offset(), sizes)


def _extent(layout: tuple[Sequence[int], Sequence[int], int]) -> int:
    shape, strides, offset = layout
    if 0 in shape:
        return offset
    return offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def _number(value: int | SymInt, sizes: Mapping[sympy.Symbol, int]) -> int:
    if not isinstance(value, SymInt):
        return int(value)
    number = value.node.expr.xreplace({key: sympy.Integer(each) for key, each in sizes.items()})
    if not number.is_Integer:
        raise CompileError(f"The size `{value}` is not known for a static program.")
    return int(number)


def _add_number_inputs(traced: GraphModule, fakes: Sequence[Any]) -> None:
    """Take the sizes as inputs all the same, so that both forms are called alike."""
    graph = traced.graph
    given = iter(graph.find_nodes(op="placeholder"))
    after = None
    for index, fake in enumerate(fakes):
        if isinstance(fake, Tensor):
            after = next(given)
            continue
        with (
            graph.inserting_after(after)
            if after
            else graph.inserting_before(next(iter(graph.nodes)))
        ):
            after = graph.placeholder(f"number_{index}")
        after.meta["val"] = fake
    traced.recompile()
