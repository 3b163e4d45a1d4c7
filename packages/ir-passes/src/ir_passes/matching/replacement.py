"""Puts a replacement in the place of a match, or leaves the graph as it was and says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, Node

from ir_core import IrOp
from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.matching.legality import Site, uses_after
from ir_passes.matching.pattern import Call, Free, Output, Value
from ir_passes.metadata import difference, fake_of, storages_in
from ir_passes.node_factory import NodeFactory


def replace_match(graph: Graph, site: Site, dialect: Dialect) -> str | None:
    """Replace a match that has no obstacle; returns the reason if the results would differ."""
    factory = NodeFactory(graph, site.match.root)
    with graph.inserting_before(site.point):
        builder = _Builder(graph, site, dialect, factory)
        builder.build()
    reason = builder.mismatch()
    if reason is not None:
        factory.undo()
        return reason
    builder.connect()
    for node in sorted(site.matched, reverse=True):
        if not node.users:
            graph.erase_node(node)
    return None


class _Builder:
    def __init__(self, graph: Graph, site: Site, dialect: Dialect, factory: NodeFactory) -> None:
        self._graph = graph
        self._site = site
        self._dialect = dialect
        self._factory = factory
        self._nodes: dict[Value, Node] = {}
        self._donated = _donated_variables(site, dialect)

    def build(self) -> None:
        """Make the new calls and those of their outputs that are used."""
        for call in self._site.rewrite.new_calls():
            arguments = {name: self._value(each) for name, each in call.arguments.items()}
            self._nodes[call] = self._factory.call(
                call.target, arguments, self._inherited_donations(call)
            )
        for new, nodes in self._pairs():
            if nodes:
                self._value(new)

    def mismatch(self) -> str | None:
        """How a new value differs from the one it replaces, in shape, dtype, strides or memory."""
        operands = storages_in([fake_of(each) for each in self._site.match.operands()])
        for new, nodes in self._pairs():
            for node in nodes:
                mine, theirs = fake_of(self._value(new)), fake_of(node)
                reason = difference(mine, theirs)
                if (
                    reason is None
                    and storages_in(mine) & operands != storages_in(theirs) & operands
                ):
                    reason = "other memory"
                if reason is not None:
                    return f"the replacement of `{node.name}` has {reason}"
        return None

    def connect(self) -> None:
        """Let the users of the old values use the new ones."""
        for new, nodes in self._pairs():
            for node in nodes:
                self._adopt(new, fake_of(node))
                node.replace_all_uses_with(self._value(new))

    def _adopt(self, new: Value | Free, fake: Any) -> None:
        # The old fake values stay: views further on share their storages.
        if isinstance(new, Free):
            return
        self._nodes[new].meta["val"] = fake
        if isinstance(new, Output):
            call = self._nodes[new.call]
            outputs = list(fake_of(call))
            outputs[new.index] = fake
            call.meta["val"] = type(fake_of(call))(outputs)

    def _pairs(self) -> list[tuple[Value | Free, tuple[Node, ...]]]:
        site = self._site
        return [(new, site.replaced[old]) for old, new in site.rewrite.replace.items()]

    def _value(self, expression: Any) -> Any:
        if isinstance(expression, Free):
            return self._site.match.values[expression.name]
        if not isinstance(expression, Call | Output):
            return expression
        if isinstance(expression, Output) and expression not in self._nodes:
            call = self._nodes[expression.call]
            self._nodes[expression] = self._factory.output(call, expression.index)
        return self._nodes[expression]

    def _inherited_donations(self, call: Call) -> tuple[str, ...]:
        op = _ir_op(call, self._dialect)
        if op is None or not op.allow_inplace:
            return ()
        return tuple(name for name in op.activations if self._is_donated(call.arguments[name]))

    def _is_donated(self, expression: Any) -> bool:
        if not isinstance(expression, Free) or expression.name not in self._donated:
            return False
        node = self._site.match.values[expression.name]
        # The new call may stand before uses that the old one came after.
        return not uses_after(self._graph, node, self._site.point, self._site.matched)


def _ir_op(call: Call, dialect: Dialect) -> IrOp | None:
    if call.target.namespace != dialect.registry.namespace:
        return None
    return dialect.registry.get(call.target._opname)


def _donated_variables(site: Site, dialect: Dialect) -> frozenset[str]:
    names: set[str] = set()
    matched: Mapping[Call, Node] = site.match.nodes
    for call, node in matched.items():
        for name in donated_arguments(node, dialect):
            expression = call.arguments[name]
            if isinstance(expression, Free):
                names.add(expression.name)
    return frozenset(names)
