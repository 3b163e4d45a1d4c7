"""Whether a match may be replaced: other users, places of uses, and writes in between."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Graph, Node

from ir_passes.identity import view_chain
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import Call, Value
from ir_passes.matching.rewrite import Rewrite
from ir_passes.metadata import fake_of, storages_in, storages_of
from ir_passes.writes import written_storages


@dataclass(frozen=True, slots=True)
class Site:
    """A match together with the rewrite that it is for.

    Attributes:
        matched: the pattern's nodes, with the views and outputs between them.
        replaced: the nodes of each value that the rewrite replaces; getitems may be repeated.
        point: the first node that may come after the replacement.
    """

    match: Match
    rewrite: Rewrite
    matched: frozenset[Node]
    replaced: dict[Value, tuple[Node, ...]]
    point: Node

    @classmethod
    def of(cls, match: Match, rewrite: Rewrite) -> Site:
        """Collect what a replacement touches."""
        replaced = {value: tuple(_nodes_of(value, match)) for value in rewrite.replace}
        calls = tuple(match.nodes.values())
        outputs = (user for node in calls for user in node.users if _is_output(user))
        matched = frozenset((*calls, *match.views, *outputs))
        return cls(match, rewrite, matched, replaced, _point(match))

    def obstacle(self) -> str | None:
        """Why the match cannot be replaced here; None if it can."""
        return self._other_user() or self._early_use() or self._write()

    def _other_user(self) -> str | None:
        """An inner value that something else uses too, and that the replacement does not give."""
        given = {node for nodes in self.replaced.values() for node in nodes}
        for node in sorted(self.matched):
            if not given.isdisjoint((node, *view_chain(node))):
                continue
            for user in node.users:
                if user not in self.matched:
                    return f"`{node.name}` is also used by `{user.name}`"
        return None

    def _early_use(self) -> str | None:
        for nodes in self.replaced.values():
            for user in (user for node in nodes for user in node.users):
                if self._stays(user) and user < self.point:
                    return f"`{user.name}` uses a result before all operands are there"
        return None

    def _stays(self, user: Node) -> bool:
        """Whether a user of a replaced value is still there afterwards."""
        if user not in self.matched:
            return True
        return user in self.match.views and any(map(self._stays, user.users))

    def _write(self) -> str | None:
        """A write, among the nodes that the replacement moves past, to anything it reads."""
        read = storages_in([fake_of(node) for node in (*self.match.operands(), *self.matched)])
        root = self.match.root
        own = written_storages(root)
        for node in self._span():
            if node is not root and read & written_storages(node):
                return f"`{node.name}` writes an operand in between"
        # The replacement writes what a root writes, in its place; no other call may read it.
        others = (node for node in self.matched if node is not root)
        read = storages_in([fake_of(each) for node in others for each in node.all_input_nodes])
        return f"`{root.name}` writes what it is made from" if own & read else None

    def _span(self) -> Iterator[Node]:
        calls = self.match.nodes.values()
        node = min(self.point, *calls)
        last = max(calls)
        while node is not last:
            yield node
            node = node.next
        yield last


def uses_after(graph: Graph, operand: Node, point: Node, ignored: frozenset[Node]) -> bool:
    """Whether anything from `point` on, but for the ignored nodes, has to do with the memory."""
    storages = storages_of(operand)
    return any(
        storages & storages_in([fake_of(each) for each in node.all_input_nodes])
        for node in graph.nodes
        if node not in ignored and not node < point
    )


def _nodes_of(value: Value, match: Match) -> Iterator[Node]:
    if isinstance(value, Call):
        yield match.nodes[value]
        return
    for user in match.nodes[value.call].users:
        if _is_output(user) and user.args[1] == value.index:
            yield user


def _is_output(node: Node) -> bool:
    return node.target is operator.getitem


def _point(match: Match) -> Node:
    """The first matched node, or what follows the last operand if that comes later.

    A root that writes stays where it is.
    """
    if written_storages(match.root):
        return match.root
    first = min(match.nodes.values())
    operands = match.operands()
    if not operands or max(operands) < first:
        return first
    point = max(operands).next
    while point.op == "placeholder":
        point = point.next
    return point
