"""One evaluation of a predicate: what it read, and how a forbidden read is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Never

from ir_core.errors import BatchDependentPredicateError, PredicateError
from ir_core.location import line_of_caller


@dataclass(slots=True)
class Inquiry:
    """One evaluation of one predicate: who asks, what was read, and the first thing refused.

    `reads` holds (parameter, kind) pairs, the kinds being dtype, device, layout, ndim, sizes and
    strides; `facts` holds what was read, as it is spelled in source.
    """

    op: str
    provider: str
    predicate: Callable[..., Any]
    reads: set[tuple[str, str]] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    refusal: PredicateError | None = None

    def note(self, parameter: str, kind: str, attribute: str, value: Any) -> Any:
        """Keep what was read, and return it."""
        self.reads.add((parameter, kind))
        self.facts[f"{parameter}.{attribute}"] = value
        return value

    @property
    def predicate_name(self) -> str:
        """The predicate's name as its author wrote it."""
        return getattr(self.predicate, "__qualname__", repr(self.predicate))

    @property
    def subject(self) -> str:
        """Start of a sentence about this predicate."""
        return f"Predicate `{self.predicate_name}` of provider `{self.provider}` for op `{self.op}`"

    def refuse(self, kind: type[PredicateError], what: str) -> Never:
        """Raise `kind`, naming predicate, provider and line, and keep it if it is swallowed."""
        error = kind(f"{self.subject} {what} ({line_of_caller()}).")
        self.refusal = self.refusal or error
        raise error

    def hide(self, what: str) -> Never:
        """Refuse the read of a token dim."""
        self.refuse(
            BatchDependentPredicateError,
            f"reads {what}, which depends on the number of tokens; the choice of an implementation "
            "must not",
        )
