"""Passes that behave, and passes that break a promise, for tests of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Graph, Node

from ir_passes.base import MatchRow, Pass, PassContext, PassResult


@dataclass(frozen=True)
class Idle(Pass):
    """Looks at nothing and changes nothing."""

    name: ClassVar[str] = "idle"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult(0)


@dataclass(frozen=True)
class DoubleToSum(Pass):
    """`x * 2` becomes `x + x`."""

    name: ClassVar[str] = "double_to_sum"
    threshold: int = 4

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        rows: list[MatchRow] = []
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            if node.args[1] != 2:
                rows.append(MatchRow(node.name, "", f"the factor is {node.args[1]}"))
                continue
            node.target = torch.ops.aten.add.Tensor
            node.args = (node.args[0], node.args[0])
            rows.append(MatchRow(node.name, ""))
        return PassResult(sum(row.is_match for row in rows), ("looked at products",), tuple(rows))

    def endpoints(self) -> tuple[int, ...]:
        return (self.threshold,)


@dataclass(frozen=True)
class Misbehaving(Pass):
    """Does what a test tells it to do."""

    name: ClassVar[str] = "misbehaving"
    deed: Callable[[Graph], int] = lambda graph: 0

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult(self.deed(graph))


@dataclass(frozen=True)
class OnManyRanks(Idle):
    """Applies with two ranks or more."""

    name: ClassVar[str] = "on_many_ranks"
    option: ClassVar[str | None] = "enable_sp"

    def refusal(self, context: PassContext) -> str | None:
        return None if context.axes.get("tp", 1) > 1 else "there is one rank"


def named(name: str) -> Pass:
    """An idle pass of this name."""
    kind = dataclass(frozen=True)(type("Named", (Idle,), {"name": name}))
    return kind()


def first_call(graph: Graph) -> Node:
    """The first node that calls something."""
    return next(node for node in graph.nodes if node.op == "call_function")
