"""Makes the new nodes of a rewrite: call, fake value, line of source and donations in one step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node

from ir_passes.arguments import parameters_of
from ir_passes.donation import mark_donated
from ir_passes.evaluation import evaluate
from ir_passes.metadata import fake_mode_of, fake_of


class NodeFactory:
    """Makes nodes at the graph's insertion point, each with the source line of one older node.

    `made` lists them in order, so that a rewrite that comes to nothing can be taken back.
    """

    def __init__(self, graph: Graph, origin: Node) -> None:
        self._graph = graph
        self._origin = origin
        self._mode: FakeTensorMode | None = fake_mode_of(graph)
        self.made: list[Node] = []

    def call(
        self, target: OpOverload, arguments: Mapping[str, Any], donated: Iterable[str] = ()
    ) -> Node:
        """A call of a torch op with these arguments by name; defaults at the end are left out."""
        args, kwargs = _shortest(target, arguments)
        node = self._graph.call_function(target, args, kwargs)
        self.made.append(node)
        node.meta["val"] = evaluate(target, args, kwargs, self._mode)
        self._inherit(node)
        mark_donated(node, donated)
        return node

    def output(self, call: Node, index: int) -> Node:
        """One output of a call that has several."""
        node = self._graph.call_function(operator.getitem, (call, index))
        self.made.append(node)
        node.meta["val"] = fake_of(call)[index]
        self._inherit(node)
        return node

    def undo(self) -> None:
        """Erase all nodes made; nothing else may use them."""
        for node in reversed(self.made):
            self._graph.erase_node(node)
        self.made.clear()

    def _inherit(self, node: Node) -> None:
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            if key in self._origin.meta:
                node.meta[key] = self._origin.meta[key]


def _shortest(
    target: OpOverload, arguments: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as make_fx writes them: by position up to the last that is no default."""
    parameters = parameters_of(target)
    keyword_only = {each.name for each in target._schema.arguments if each.kwarg_only}
    values = {each.name: arguments.get(each.name, each.default) for each in parameters}
    given = {
        each.name: values[each.name]
        for each in parameters
        if each.is_required or not _is_default(values[each.name], each.default)
    }
    kwargs = {name: value for name, value in given.items() if name in keyword_only}
    positional = [each for each in parameters if each.name not in keyword_only]
    while positional and positional[-1].name not in given:
        positional.pop()
    return tuple(values[each.name] for each in positional), kwargs


def _is_default(value: Any, default: Any) -> bool:
    return not isinstance(value, Node) and type(value) is type(default) and value == default
