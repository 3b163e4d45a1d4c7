"""Guards on shapes: what a trace or a pass has assumed about sizes, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_passes.location import UNKNOWN_LINE, line_of
from ir_passes.shape_guard import ShapeGuard


def num_guards(mode: FakeTensorMode | None) -> int:
    """How many guards the mode's shapes have by now."""
    environment = _environment(mode)
    return len(environment.guards) if environment is not None else 0


def guards_since(mode: FakeTensorMode | None, count: int, cause: str) -> tuple[ShapeGuard, ...]:
    """The guards that were added after the first `count`, with their cause."""
    environment = _environment(mode)
    if environment is None:
        return ()
    return tuple(
        ShapeGuard(str(guard.expr), str(guard.sloc), cause, guard.expr)
        for guard in environment.guards[count:]
    )


def deferred_guards(
    graph: Graph, mode: FakeTensorMode | None, cause: str
) -> tuple[ShapeGuard, ...]:
    """What torch checks only while the program runs: equalities and bounds of unbacked sizes.

    Their location is where the graph checks them, which may be a line that only uses the size.
    """
    environment = _environment(mode)
    if environment is None:
        return ()
    checks = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    asserts = (each for group in environment.deferred_runtime_asserts.values() for each in group)
    return tuple(
        ShapeGuard(str(each.expr), _checked_at(str(each.expr), checks), cause, each.expr)
        for each in asserts
    )


def bounds_of(mode: FakeTensorMode, symbols: Iterable[sympy.Symbol]) -> tuple[ShapeGuard, ...]:
    """What torch took for granted about symbols: the least and the greatest value of each."""
    environment = _environment(mode)
    found: list[ShapeGuard] = []
    for symbol in sorted(symbols, key=str) if environment is not None else ():
        known = environment.var_to_range.get(symbol)  # type: ignore[union-attr]
        if known is None:
            continue
        for formula in (symbol >= known.lower, symbol <= known.upper):
            if formula not in (sympy.true, sympy.false):
                found.append(ShapeGuard(str(formula), UNKNOWN_LINE, "range of the symbol", formula))
    return tuple(found)


def _checked_at(expression: str, checks: Sequence[Node]) -> str:
    # Torch writes the expression into the message of the check.
    found = (node for node in checks if f"expression {expression} on node" in str(node.args[1]))
    return next((f"checked at {line_of(node)}" for node in found), UNKNOWN_LINE)


def _environment(mode: FakeTensorMode | None) -> ShapeEnv | None:
    return mode.shape_env if mode is not None else None
