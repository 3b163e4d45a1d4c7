"""Graphs as text for goldens, dumps and people: the same graph always prints the same.

Names and symbols are given anew in order of appearance, inputs by their path in the model. Nothing
of the machine or the session gets in: no addresses, no paths of files.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node
from torch.utils._dtype_abbrs import dtype_abbrs

from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.location import INPUT_PATH
from ir_passes.metadata import fake_of, is_known_contiguous
from ir_passes.symbols import SymbolNames


def print_graph(graph: Graph, dialect: Dialect | None = None) -> str:
    """Text of a graph, one line a node: name, dtype and shape, op, arguments, donations.

    Strides are shown in braces where a tensor is not contiguous, the device where it is not the
    CPU. Ops of the dialect's registry print under `ir.`.
    """
    return GraphPrinter(graph, dialect or Dialect()).text()


class GraphPrinter:
    """The names of one graph's nodes and the text made of them."""

    def __init__(self, graph: Graph, dialect: Dialect) -> None:
        self._graph = graph
        self._dialect = dialect
        self._symbols = SymbolNames()
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._names: dict[Node, str] = {}
        for node in graph.nodes:
            self._names[node] = self._unique(self._base_name(node))

    def name_of(self, node: Node) -> str:
        """The name that a node has in the text."""
        return self._names[node]

    def text(self) -> str:
        """The whole graph."""
        inputs = [node for node in self._graph.nodes if node.op == "placeholder"]
        lines = [f"  {self._names[node]}: {self._type(fake_of(node))}," for node in inputs]
        body = [f"  {line}" for line in self._body()]
        return "\n".join(["graph(", *lines, "):", *body]) + "\n"

    def line(self, node: Node) -> str:
        """The line of one node that is no input."""
        if node.op == "output":
            return f"return {self._spell(node.args[0])}"
        name, type_ = self._names[node], self._type(fake_of(node))
        if node.op == "get_attr":
            return f"{name}: {self._type(self._attribute(node))} = constant{self._value(node)}"
        return f"{name}: {type_} = {self._call(node)}{self._donated(node)}"

    def _body(self) -> Iterator[str]:
        for node in self._graph.nodes:
            if node.op != "placeholder":
                yield self.line(node)

    def _base_name(self, node: Node) -> str:
        if node.op == "placeholder":
            fake = fake_of(node)
            if isinstance(fake, torch.SymInt):
                return self._symbols.spell(fake)
            return str(node.meta.get(INPUT_PATH, node.name))
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            return f"{self._names[node.args[0]]}.{node.args[1]}"
        if node.op == "get_attr":
            return "constant"
        return _op_name(node.target)

    def _unique(self, base: str) -> str:
        name = base
        while name in self._taken:
            self._repeats[base] = self._repeats.get(base, 0) + 1
            name = f"{base}_{self._repeats[base]}"
        self._taken.add(name)
        return name

    def _call(self, node: Node) -> str:
        if node.target is operator.getitem:
            return f"{self._spell(node.args[0])}[{self._spell(node.args[1])}]"
        given = [self._spell(each) for each in node.args]
        given += [f"{name}={self._spell(value)}" for name, value in node.kwargs.items()]
        return f"{self._target(node.target)}({', '.join(given)})"

    def _target(self, target: Any) -> str:
        if not isinstance(target, OpOverload):
            return _op_name(target)
        own = target.namespace == self._dialect.registry.namespace
        overload = "" if target._overloadname == "default" else f".{target._overloadname}"
        return f"{'ir' if own else target.namespace}.{target._opname}{overload}"

    def _donated(self, node: Node) -> str:
        names = donated_arguments(node, self._dialect)
        return f"  # donates {', '.join(names)}" if names else ""

    def _spell(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, list | tuple):
            inside = ", ".join(self._spell(each) for each in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key}: {self._spell(each)}' for key, each in value.items())}}}"
        if isinstance(value, OpOverload):
            return self._target(value)
        if isinstance(value, str):
            return repr(value)
        return self._symbols.spell(value)

    def _type(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._tensor_type(value)
        if isinstance(value, list | tuple):
            return f"({', '.join(self._type(each) for each in value)})"
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return f"sym({self._symbols.spell(value)})"
        return "none" if value is None else type(value).__name__

    def _tensor_type(self, value: Tensor) -> str:
        strides = device = ""
        if value.layout is torch.strided and not is_known_contiguous(value):
            strides = f"{{{self._symbols.spell_sizes(value.stride())}}}"
        if value.device.type != "cpu":
            device = f"@{value.device}"
        sizes = self._symbols.spell_sizes(value.shape)
        return f"{dtype_abbrs[value.dtype]}[{sizes}]{strides}{device}"

    def _attribute(self, node: Node) -> Any:
        value: Any = self._graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        return value

    def _value(self, node: Node) -> str:
        value = self._attribute(node)
        if isinstance(value, Tensor) and value.numel() == 1:
            return f"({value.item()})"
        return ""


def _op_name(target: Any) -> str:
    if isinstance(target, OpOverload):
        return target._opname
    if isinstance(target, HigherOrderOperator):
        return target.name()
    return str(getattr(target, "__name__", target))
