"""The rows of a call: the size that a choice by ranges goes by. Knows of no choice.

An op has rows if one of its tensors is always given and has a dim that counts tokens; the first
such dim is meant, in eager mode, under a compiler and in what dispatch remembers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import SymInt, Tensor

if TYPE_CHECKING:
    from ir_core.op import IrOp

Bounds = tuple[int, int | None]
"""The fewest and the most rows that a call may have; None without end."""

KnownSizes = Mapping[Any, Bounds]
"""What a compiler knows of sizes besides what its trace does, by their sympy symbols."""


def rows_place(op: IrOp) -> tuple[str, int] | None:
    """The parameter and the dim that count an op's rows; None if it has none."""
    for parameter in op.schema.parameters:
        dims = op.token_dims.get(parameter.name)
        if dims and parameter.is_tensor and not parameter.is_optional:
            return parameter.name, min(dims)
    return None


def row_bounds(op: IrOp, values: Sequence[Any], known: KnownSizes) -> Bounds:
    """The fewest and the most rows of a call: in eager mode both are the number that it has.

    Adds no guard to a trace.

    Args:
        op: the op that is called.
        values: one per parameter; tensors may be fakes.
        known: of the symbols in a traced size.
    """
    place = rows_place(op)
    if place is None:
        return 0, None
    name, dim = place
    rows = values[op.schema.names.index(name)].shape[dim]
    return _traced_bounds(rows, known) if isinstance(rows, SymInt) else (rows, rows)


def token_sizes(op: IrOp, values: Sequence[Any]) -> frozenset[int | None]:
    """All sizes of a call that count tokens; None is among them if an argument is such a count."""
    sizes: set[int | None] = set()
    for name, value in zip(op.schema.names, values, strict=True):
        dims = op.token_dims.get(name)
        if dims is None or value is None:
            continue
        sizes |= {value.shape[dim] for dim in dims} if isinstance(value, Tensor) else {None}
    return frozenset(sizes)


def _traced_bounds(rows: SymInt, known: KnownSizes) -> Bounds:
    from torch.utils._sympy.numbers import int_oo  # noqa: PLC0415 - eager mode needs no sympy
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy  # noqa: PLC0415

    expression, environment = rows.node.expr, rows.node.shape_env
    ranges = {
        symbol: environment.var_to_range[symbol]
        for symbol in expression.free_symbols
        if symbol in environment.var_to_range
    }
    for symbol, (first, last) in known.items():
        ranges[symbol] = ValueRanges(first, int_oo if last is None else last)
    found = bound_sympy(expression, ranges)
    return (
        int(found.lower) if found.lower.is_Integer else 0,
        int(found.upper) if found.upper.is_Integer else None,
    )
