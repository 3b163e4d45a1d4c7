"""Gives ops that write by declaration their own form back, after torch made them functional.

Torch turns such a call into `auto_functionalized_v2`, whose outputs are the new values of the bases
that the op writes. The call itself is restored: it writes a base directly where nobody can tell,
and a clone of it elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node

from ir_passes.dialect import Dialect, is_functional_wrapper
from ir_passes.evaluation import refresh_views
from ir_passes.metadata import fake_mode_of, fake_of, storages_in, storages_of
from ir_passes.node_factory import NodeFactory
from ir_passes.verifier import is_write_back

_COPY_BACK = torch.ops.aten.copy_.default


def restore_declared_writes(graph: Graph, dialect: Dialect) -> int:
    """Restore every call that may write in a functional graph; returns how many there were.

    An input's copy of itself onto itself, which then remains at the end, is removed.
    """
    mode = fake_mode_of(graph)
    wrapped = [node for node in graph.nodes if _inner_op(node, dialect) is not None]
    for node in wrapped:
        _Restoration(graph, node, mode).run()
    for node in graph.find_nodes(op="call_function", target=_COPY_BACK):
        if node.args[0] is node.args[1]:
            graph.erase_node(node)
    return len(wrapped)


def _inner_op(node: Node, dialect: Dialect) -> OpOverload | None:
    inner = node.args[0] if is_functional_wrapper(node) and node.args else None
    if not isinstance(inner, OpOverload) or "_all_bases" not in node.kwargs:
        return None
    return inner if dialect.admits_writes_of(inner) else None


class _Restoration:
    def __init__(self, graph: Graph, node: Node, mode: FakeTensorMode | None) -> None:
        self._graph = graph
        self._node = node
        self._mode = mode
        self._factory = NodeFactory(graph, node)
        self._target: Any = node.args[0]

    def run(self) -> None:
        old: Any = self._node.kwargs["_all_bases"]
        with self._graph.inserting_before(self._node):
            new = [self._writable(base) for base in old]
            call = self._factory.call(self._target, self._arguments(new))
        num_returns = len(self._target._schema.returns)
        for user in list(self._node.users):
            index: Any = user.args[1]
            # A call that returns nothing still has its None in front of the bases.
            at = index - max(num_returns, 1)
            if at >= 0:
                self._become(user, new[at])
            else:
                self._become(user, self._result(call, index, num_returns))
        self._graph.erase_node(self._node)

    def _become(self, user: Node, value: Node) -> None:
        stale = storages_of(user) - storages_of(value)
        user.replace_all_uses_with(value)
        self._graph.erase_node(user)
        refresh_views(value, stale, self._mode)

    def _result(self, call: Node, index: int, num_returns: int) -> Node:
        if num_returns <= 1:
            return call
        with self._graph.inserting_after(call):
            return self._factory.output(call, index)

    def _writable(self, base: Node) -> Node:
        if self._may_overwrite(base):
            return base
        return self._factory.call(torch.ops.aten.clone.default, {"self": base})

    def _may_overwrite(self, base: Node) -> bool:
        """Whether the old value of a base is dead after the call, for this graph and its caller."""
        storages = storages_of(base)
        bases: Any = self._node.kwargs["_all_bases"]
        others = [fake_of(each) for each in self._node.all_input_nodes if each not in bases]
        twins = [each for each in bases if each is not base and storages_of(each) & storages]
        if twins or storages & storages_in(others):
            return False
        later = self._later_uses(storages)
        if base.op == "placeholder":
            return len(later) == 1 and is_write_back(later[0]) and later[0].args[0] is base
        inputs = [node for node in self._graph.nodes if node.op in ("placeholder", "get_attr")]
        return not later and not storages & storages_in([fake_of(node) for node in inputs])

    def _later_uses(self, storages: frozenset[int]) -> list[Node]:
        uses: list[Node] = []
        node = self._node.next
        while True:
            if storages & storages_in([fake_of(each) for each in node.all_input_nodes]):
                uses.append(node)
            if node.op == "output":
                return uses
            node = node.next

    def _arguments(self, bases: list[Node]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for each in self._target._schema.arguments:
            if each.alias_info is not None and each.alias_info.is_write:
                arguments[each.name] = self._written(f"_{each.name}", bases)
            else:
                arguments[each.name] = self._node.kwargs.get(each.name)
        return arguments

    def _written(self, prefix: str, bases: list[Node]) -> Node | None:
        facts = self._node.kwargs
        index: Any = facts[f"{prefix}_base_index"]
        if index is None:
            return None
        base = bases[index]
        aten = torch.ops.aten
        if f"{prefix}_storage_offset" in facts:
            names = ("size", "stride", "storage_offset")
            view = {"self": base} | {name: facts[f"{prefix}_{name}"] for name in names}
            return self._factory.call(aten.as_strided.default, view)
        if f"{prefix}_slice_dim" in facts:
            names = ("dim", "start", "end")
            view = {"self": base} | {name: facts[f"{prefix}_slice_{name}"] for name in names}
            return self._factory.call(aten.slice.Tensor, view)
        return base
