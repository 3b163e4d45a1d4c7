"""What was assumed about sizes, as data: for reports, and to be stored. Evaluates nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field


@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """An assumption about sizes.

    Attributes:
        expression: what must hold, in torch's symbols.
        location: the line of source that asked, as torch knows it.
        cause: the step that added it: "trace", or a pass's name.
        formula: the same as an expression over symbols; None where there is none.
    """

    expression: str
    location: str
    cause: str
    formula: Annotated[Any, Field(exclude=True)] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BrokenGuard:
    """A guard that does not hold for some sizes, by label: `{"tokens": 1}` is the first such."""

    guard: ShapeGuard
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        guard = self.guard
        return f"`{guard.expression}` ({guard.cause}, {guard.location}) does not hold for {sizes}"
