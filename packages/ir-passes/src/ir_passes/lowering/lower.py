"""Replaces every IR op of a graph by the implementation that eager mode would choose.

An in-place implementation gets clones of its activations, so that the graph means what it meant;
which of them are needless is another question: `ir_passes.lowering.clones`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ir_core import IrError, IrOp
from ir_core.selection import Selection
from ir_passes.arguments import bound_arguments
from ir_passes.dialect import Dialect
from ir_passes.errors import LoweringError
from ir_passes.evaluation import evaluate_again, fake_arguments, refresh_fakes
from ir_passes.location import line_of
from ir_passes.lowering.implementation_graph import (
    check_contract,
    is_traced,
    trace_implementation,
    traced_outputs,
)
from ir_passes.lowering.selections import NodeSelection
from ir_passes.metadata import fake_mode_of, fake_of
from ir_passes.printer import GraphPrinter


@dataclass(frozen=True, slots=True)
class Lowered:
    """What lowering did: a row for each node, and the clones that it put in."""

    selections: tuple[NodeSelection, ...]
    clones: tuple[Node, ...]


def lower(module: GraphModule, dialect: Dialect) -> Lowered:
    """Lower every IR op of a functional graph, in place.

    The choice is `op.select` on the fakes of the call's arguments, as in eager mode. A traceable
    implementation is inlined; an opaque one becomes a call of its torch op.

    Raises:
        LoweringError: an op that nothing can run, that cannot be traced, or whose implementation
            breaks the op's contract; names the op, the provider and the model's line.
    """
    graph = module.graph
    mode = fake_mode_of(graph)
    printer = GraphPrinter(graph, dialect)
    rows: list[NodeSelection] = []
    clones: list[Node] = []
    for node in list(graph.nodes):
        op = dialect.op_of(node)
        if op is None:
            continue
        name, line = printer.name_of(node), line_of(node)
        try:
            selection = op.select(*_values(node))
            clones += _replace(module, node, op, selection, mode)
        except (IrError, LoweringError) as error:
            raise LoweringError(f"`{name}` ({line}): {error}") from error
        rows.append(NodeSelection.of(name, line, selection))
    _check_nothing_is_left(graph, dialect)
    refresh_fakes(graph, mode)
    module.recompile()
    return Lowered(tuple(rows), tuple(clones))


def _values(node: Node) -> list[Any]:
    values, _ = fake_arguments(tuple(bound_arguments(node).values()), {})
    return list(values)


def _replace(
    module: GraphModule,
    node: Node,
    op: IrOp,
    selection: Selection,
    mode: FakeTensorMode | None,
) -> list[Node]:
    """Put the implementation in the node's place; returns the clones that it needed."""
    implementation = selection.implementation
    if implementation.opaque:
        node.target = implementation.torch_op
        node.meta.pop("eager_input_vals", None)
        return []
    if mode is None:
        raise LoweringError("the graph has no fake tensors")
    arguments = list(bound_arguments(node).values())
    clones: list[Node] = []
    if implementation.inplace:
        arguments, clones = _cloned(module.graph, node, op, arguments, mode)
    values, _ = fake_arguments(tuple(arguments), {})
    traced = trace_implementation(selection, values, mode)
    check_contract(selection, fake_of(node), traced)
    given = [each for each, value in zip(_leaves(arguments), _leaves(values), strict=True)
             if is_traced(value)]  # fmt: skip
    outputs = _inline(module, node, traced, given)
    _redirect(node, outputs)
    module.graph.erase_node(node)
    return clones


def _leaves(values: Sequence[Any]) -> list[Any]:
    return pytree.tree_flatten(tuple(values))[0]


def _cloned(
    graph: Graph, node: Node, op: IrOp, arguments: list[Any], mode: FakeTensorMode
) -> tuple[list[Any], list[Node]]:
    """The arguments with contiguous clones in the place of the activations."""
    clones: list[Node] = []
    for index, name in enumerate(op.schema.names):
        argument = arguments[index]
        if name not in op.activations or not isinstance(argument, Node):
            continue
        if not isinstance(fake_of(argument), Tensor):
            continue
        with graph.inserting_before(node):
            clone = graph.call_function(
                torch.ops.aten.clone.default,
                (argument,),
                {"memory_format": torch.contiguous_format},
            )
        clone.meta["val"] = evaluate_again(clone, mode)
        clone.stack_trace = node.stack_trace
        arguments[index] = clone
        clones.append(clone)
    return arguments, clones


def _inline(
    module: GraphModule, node: Node, traced: GraphModule, given: Sequence[Any]
) -> tuple[Any, ...]:
    """Copy a traced graph before a node; returns its outputs in terms of the outer graph."""
    placed: dict[Node, Any] = {}
    inputs = iter(given)
    with module.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                placed[inner] = next(inputs)
            elif inner.op == "get_attr":
                placed[inner] = _copy_constant(module, traced, inner)
            elif inner.op != "output":
                placed[inner] = module.graph.node_copy(inner, placed.__getitem__)
                placed[inner].stack_trace = node.stack_trace
    return tuple(map_arg(each, placed.__getitem__) for each in traced_outputs(traced))


def _copy_constant(module: GraphModule, traced: GraphModule, inner: Node) -> Node:
    name, number = f"_constant_{inner.name}", 0
    while hasattr(module, name):
        number += 1
        name = f"_constant_{inner.name}_{number}"
    module.register_buffer(name, getattr(traced, str(inner.target)))
    constant = module.graph.get_attr(name)
    constant.meta.update(inner.meta)
    return constant


def _redirect(node: Node, outputs: tuple[Any, ...]) -> None:
    """Let the users of a call take the inlined outputs."""
    if not isinstance(fake_of(node), list | tuple):
        if node.users:
            node.replace_all_uses_with(outputs[0])
        return
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise LoweringError(f"`{user.name}` takes all outputs of `{node.name}` at once")
        index: Any = user.args[1]
        user.replace_all_uses_with(outputs[index])
        node.graph.erase_node(user)


def _check_nothing_is_left(graph: Graph, dialect: Dialect) -> None:
    left = [f"`{node.name}` ({line_of(node)})" for node in _ir_nodes(graph, dialect)]
    if left:
        raise LoweringError(f"IR ops are left after lowering: {', '.join(left)}")


def _ir_nodes(graph: Graph, dialect: Dialect) -> Iterator[Node]:
    return (node for node in graph.nodes if dialect.op_of(node) is not None)
