"""A rewrite: a pattern, and which of its values become which values of the replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ir_passes.errors import PatternError
from ir_passes.matching.pattern import Call, Free, Output, Value, calls_in, free_names


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """Replaces the calls of a pattern by other calls.

    Attributes:
        root: the pattern's last call; the others are found as its operands.
        replace: values of the pattern that may be used elsewhere, and what they become. A value of
            the pattern that is not named here must have no other user.

    Raises:
        PatternError: a value that is not the pattern's, or a free variable that it does not bind.
    """

    root: Call
    replace: Mapping[Value, Value | Free]

    def __post_init__(self) -> None:
        pattern = set(calls_in(self.root))
        for old in self.replace:
            if (old.call if isinstance(old, Output) else old) not in pattern:
                raise PatternError(f"`{old}` is replaced, but is not part of `{self.root}`.")
        known = free_names(self.root)
        for new in self.replace.values():
            unknown = free_names(new) - known
            if unknown:
                raise PatternError(
                    f"`{new}` uses {sorted(unknown)}, which the pattern does not bind; it binds "
                    f"{sorted(known)}."
                )
        if not any(_call_of(old) is self.root for old in self.replace):
            raise PatternError(f"Nothing replaces the pattern's root `{self.root}`.")

    def new_calls(self) -> tuple[Call, ...]:
        """The calls of the replacement, operands before their users."""
        seen: dict[Call, None] = {}
        for new in self.replace.values():
            seen.update(dict.fromkeys(calls_in(new)))
        return tuple(seen)

    def contains(self, other: Rewrite) -> bool:
        """Whether the other pattern is a part of this one, and not all of it."""
        inner = (each for each in calls_in(self.root) if each is not self.root)
        return any(_fits(other.root, each) for each in inner)


def _call_of(value: Value) -> Call:
    return value.call if isinstance(value, Output) else value


def _fits(pattern: Any, expression: Any) -> bool:
    """Whether whatever matches the expression also matches the pattern."""
    if isinstance(pattern, Free):
        return True
    if isinstance(pattern, Output) and isinstance(expression, Output):
        return pattern.index == expression.index and _fits(pattern.call, expression.call)
    if isinstance(pattern, Call) and isinstance(expression, Call):
        return pattern.target is expression.target and all(
            _fits(pattern.arguments[name], expression.arguments[name]) for name in pattern.arguments
        )
    is_literal = not isinstance(pattern, Call | Output)
    return is_literal and type(pattern) is type(expression) and pattern == expression
