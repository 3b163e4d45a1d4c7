"""From a split graph to the plan of its program: names for nodes, and what is called between."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_aggregate

from ir_passes.dialect import Dialect
from ir_passes.location import INPUT_PATH
from ir_passes.metadata import storages_of
from ir_passes.programs.plan import (
    CallStep,
    ItemStep,
    PieceStep,
    ProgramPlan,
    SizeStep,
    Step,
    Value,
)
from ir_passes.splitting.split import Piece, SplitGraph


def plan_of(split: SplitGraph, dialect: Dialect) -> ProgramPlan:
    """The plan of a split graph's program."""
    computed: set[Node] = set()
    steps: list[Step] = []
    for step in split.steps:
        if isinstance(step, Piece):
            steps.append(_piece_step(step, computed))
            computed.update(step.outputs)
        else:
            steps.append(_node_step(step, dialect))
    results: Any = split.output.args[0]
    results = results if isinstance(results, list | tuple) else (results,)
    return ProgramPlan(
        tuple(node.name for node in split.inputs),
        tuple(_size_step(node) for node in split.sizes),
        tuple(steps),
        tuple(_named(each) for each in results),
        tuple(node.name for node in split.constants),
        _overwritten(split),
    )


def targets_of(split: SplitGraph, dialect: Dialect) -> Mapping[str, Callable[..., Any]]:
    """What the calls between pieces run, by their targets in the plan: IR ops as in eager mode."""
    nodes = [step for step in split.steps if isinstance(step, Node)]
    found = {_target_name(node, dialect): dialect.op_of(node) or node.target for node in nodes}
    return {name: target for name, target in found.items() if callable(target)}


def constants_of(split: SplitGraph) -> Mapping[str, Any]:
    """The graph's own tensors by name."""
    return {node.name: attrgetter(str(node.target))(split.module) for node in split.constants}


def _piece_step(piece: Piece, computed: set[Node]) -> PieceStep:
    moving = (
        position
        for position, node in enumerate(piece.inputs)
        if node.op != "placeholder" and node not in computed
    )
    return PieceStep(
        piece.name,
        tuple(node.name for node in piece.inputs),
        tuple(node.name for node in piece.outputs),
        tuple(str(node.meta.get(INPUT_PATH, node.name)) for node in piece.inputs),
        tuple(moving),
    )


def _node_step(node: Node, dialect: Dialect) -> CallStep | ItemStep:
    if node.target is operator.getitem:
        source, index = node.args
        return ItemStep(node.name, str(source), index)  # type: ignore[arg-type]
    name = node.name if node.users else None
    kwargs = {key: _named(value) for key, value in node.kwargs.items()}
    args = tuple(_named(each) for each in node.args)
    return CallStep(name, _target_name(node, dialect), args, kwargs)


def _size_step(node: Node) -> SizeStep:
    source, dim = node.args
    return SizeStep(node.name, str(source), dim)  # type: ignore[arg-type]


def _target_name(node: Node, dialect: Dialect) -> str:
    op = dialect.op_of(node)
    if op is not None:
        return f"ir.{op.name}"
    return str(node.target) if isinstance(node.target, OpOverload) else f"python.{node.name}"


def _named(value: Any) -> Any:
    """The same nest with names in the place of nodes."""

    def name(each: Any) -> Any:
        return Value(each.name) if isinstance(each, Node) else each

    return map_aggregate(value, name)


def _overwritten(split: SplitGraph) -> frozenset[int]:
    """Positions of the graph's inputs whose memory some piece may overwrite: donated ones."""
    storages = frozenset().union(
        *(
            storages_of(piece.inputs[place])
            for piece in split.pieces
            for place in piece.overwritable
        )
    )
    inputs = enumerate(split.inputs)
    return frozenset(place for place, node in inputs if storages_of(node) & storages)
