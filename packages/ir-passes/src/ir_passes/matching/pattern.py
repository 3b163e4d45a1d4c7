"""Patterns and replacements as expressions over ops. Builds them; matches nothing.

    x, residual, weight, epsilon = free("x", "residual", "weight", "epsilon")
    total = call(torch.ops.aten.add.Tensor, x, residual)
    normal = call(ir.ops.rms_norm, total, weight, epsilon)

A free variable stands for any tensor or scalar. An argument that is left out is at its default, and
so matches that default however the graph spells it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload

from ir_core import IrOp
from ir_passes.arguments import bind
from ir_passes.errors import PatternError


@dataclass(frozen=True, slots=True)
class Free:
    """Any tensor or scalar; the same one wherever the name appears."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of an op, with one expression per parameter.

    `commutes`: the first two arguments may be in either order. `call[i]` is an output of an op that
    has several.
    """

    target: OpOverload
    arguments: Mapping[str, Any]
    commutes: bool = False

    def __getitem__(self, index: int) -> Output:
        return Output(self, index)

    def __iter__(self) -> Iterator[Output]:
        # Python would otherwise ask for one index after another, without end.
        raise TypeError(f"`{self}` has no known number of outputs; take them by index.")

    def __str__(self) -> str:
        return str(self.target._schema.name).replace("::", ".")


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a call that has several."""

    call: Call
    index: int

    def __str__(self) -> str:
        return f"{self.call}[{self.index}]"


Value = Call | Output


def free(*names: str) -> tuple[Free, ...]:
    """One free variable for each name."""
    return tuple(map(Free, names))


def call(op: IrOp | OpOverload, *args: Any, commutes: bool = False, **kwargs: Any) -> Call:
    """A call of an IR op (in its functional form) or of a torch op.

    Raises:
        PatternError: the arguments do not fit the op's schema.
    """
    target = op.torch_op if isinstance(op, IrOp) else op
    try:
        return Call(target, bind(target, args, kwargs), commutes)
    except TypeError as error:
        raise PatternError(f"A pattern calls `{target}` wrongly: {error}") from error


def calls_in(expression: Any) -> Iterator[Call]:
    """The calls of an expression, each once, operands before their users."""
    seen: dict[Call, None] = {}
    _collect(expression, seen)
    yield from seen


def free_names(expression: Any) -> frozenset[str]:
    """Names of the free variables of an expression."""
    if isinstance(expression, Free):
        return frozenset({expression.name})
    arguments = (each for one in calls_in(expression) for each in one.arguments.values())
    return frozenset(each.name for each in arguments if isinstance(each, Free))


def _collect(expression: Any, seen: dict[Call, None]) -> None:
    if isinstance(expression, Output):
        expression = expression.call
    if isinstance(expression, Call) and expression not in seen:
        for argument in expression.arguments.values():
            _collect(argument, seen)
        seen[expression] = None
