"""Removes what changes nothing: identity views, casts to the same dtype, checks that always hold.

Views, outputs and size arithmetic that nobody uses go too. Clones stay: who may share memory with
whom is settled when ops are lowered.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import SymBool, SymFloat, SymInt
from torch.fx import Graph, Node

from ir_passes.base import MatchRow, Pass, PassContext, PassResult
from ir_passes.dialect import Dialect
from ir_passes.evaluation import refresh_views
from ir_passes.identity import identity_cast_of, identity_view_of, viewed
from ir_passes.location import line_of
from ir_passes.metadata import fake_mode_of, fake_of, storages_of, tensors_in
from ir_passes.printer import GraphPrinter
from ir_passes.writes import StorageUses


@dataclass(frozen=True)
class EliminateNoops(Pass):
    """Identity views, same-dtype casts and checks that hold for every size give way to their input.

    A cast is a copy: it stays where sharing memory instead could be seen, because either side is
    written, donated or returned. A view that is returned stays a tensor of its own.
    """

    name = "eliminate_noops"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Remove no-ops in order, then what nobody uses any more."""
        printer = GraphPrinter(graph, context.dialect)
        rows: list[MatchRow] = []
        for node in list(graph.nodes):
            reason = _eliminate(graph, node, context.dialect)
            if reason is not None:
                rows.append(MatchRow(printer.name_of(node), line_of(node), reason))
        for node in reversed(list(graph.nodes)):
            if not node.users and _is_removable(node):
                rows.append(MatchRow(printer.name_of(node), line_of(node)))
                graph.erase_node(node)
        return PassResult(sum(row.is_match for row in rows), matches=tuple(rows))


def _eliminate(graph: Graph, node: Node, dialect: Dialect) -> str | None:
    """Remove a node if it is a no-op: "" if so, the reason if it must stay, None if it is none."""
    if _is_idle_check(node):
        graph.erase_node(node)
        return ""
    source = identity_view_of(node)
    if source is not None:
        return _obstacle_to_view(graph, node, source) or _replace(graph, node, source)
    source = identity_cast_of(node)
    if source is not None:
        return _obstacle_to_cast(graph, node, source, dialect) or _replace(graph, node, source)
    return None


def _replace(graph: Graph, node: Node, source: Node) -> str:
    stale = storages_of(node) - storages_of(source)
    node.replace_all_uses_with(source)
    graph.erase_node(node)
    if stale:
        refresh_views(source, stale, fake_mode_of(graph))
    return ""


def _obstacle_to_view(graph: Graph, node: Node, source: Node) -> str | None:
    output = graph.output_node()
    if node not in output.all_input_nodes:
        return None
    if source.op == "placeholder" or source in output.all_input_nodes:
        return f"it is returned, and is a tensor of its own beside `{source.name}`"
    return None


def _obstacle_to_cast(graph: Graph, node: Node, source: Node, dialect: Dialect) -> str | None:
    uses = StorageUses.of(graph, dialect)
    copy, original = storages_of(node), storages_of(source)
    if (copy | original) & (uses.written | uses.donated):
        return "either side is written or donated, so it is a copy that counts"
    if copy & uses.outputs and original & (uses.outputs | uses.inputs):
        return f"it is returned, and must not share memory with `{source.name}`"
    return None


def _is_idle_check(node: Node) -> bool:
    """Whether a check cannot fail by its form alone.

    What torch knows of sizes does not count: it knows it from the very checks that are in question.
    """
    if node.target is not torch.ops.aten._assert_scalar.default:
        return False
    condition = node.args[0]
    if not isinstance(condition, Node):
        return condition is True
    if condition.target not in (operator.eq, operator.ge, operator.le):
        return False
    left, right = condition.args
    if isinstance(left, Node) and left is right:
        return True
    is_bound = condition.target is operator.ge and isinstance(right, int) and right <= 0
    return is_bound and isinstance(left, Node) and _is_tensor_size(left)


def _is_tensor_size(node: Node) -> bool:
    if node.target is torch.ops.aten.sym_size.int:
        return True
    size = fake_of(node)
    inputs = node.graph.find_nodes(op="placeholder") if node.op == "placeholder" else []
    shapes = (tensor.shape for each in inputs for tensor in tensors_in(fake_of(each)))
    return any(_is_same_symbol(size, each) for shape in shapes for each in shape)


def _is_same_symbol(first: object, second: object) -> bool:
    if not isinstance(first, SymInt) or not isinstance(second, SymInt):
        return False
    return bool(first.node.expr == second.node.expr)


def _is_removable(node: Node) -> bool:
    if node.op != "call_function" or "unbacked_bindings" in node.meta:
        return False
    is_size = isinstance(fake_of(node), bool | int | SymInt | SymFloat | SymBool)
    is_output = node.target is operator.getitem
    return is_size or is_output or viewed(node) is not None
