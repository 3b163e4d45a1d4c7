"""What a pipeline was asked to do and what it did, pass by pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ir_passes.base import MatchRow, PassResult
from ir_passes.shape_guard import ShapeGuard
from ir_passes.table import align

_NOTHING = PassResult(0)


class Effect(StrEnum):
    """What became of a requested pass."""

    RAN = "ran"
    DISABLED = "disabled"
    BEYOND_LIMIT = "beyond the limit"
    DOES_NOT_APPLY = "does not apply"


@dataclass(frozen=True, slots=True)
class PassReport:
    """One requested pass.

    Attributes:
        name: the pass.
        options: those that differ from their defaults.
        requested_by: "default", a setting, or the distribution of a plug-in.
        effect: what became of it.
        reason: why it did not run; "" if it did.
        result: what it changed; nothing if it did not run.
        seconds: its own time, checks excluded.
        guards: assumptions about sizes that it added.
    """

    name: str
    options: str
    requested_by: str
    effect: Effect
    reason: str = ""
    result: PassResult = _NOTHING
    seconds: float = 0.0
    guards: tuple[ShapeGuard, ...] = ()

    @property
    def near_misses(self) -> tuple[MatchRow, ...]:
        """Places that it looked at and left alone."""
        return tuple(row for row in self.result.matches if not row.is_match)


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """All requested passes in order, and what a user should hear of."""

    passes: tuple[PassReport, ...]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def changed(self) -> int:
        """How many places all passes changed."""
        return sum(each.result.changed for each in self.passes)

    def of(self, name: str) -> PassReport:
        """The report of one pass; KeyError for one that was not requested."""
        for each in self.passes:
            if each.name == name:
                return each
        raise KeyError(name)


def format_report(report: PipelineReport) -> str:
    """Table of requested against effective passes, then warnings."""
    rows = [("pass", "requested by", "effect", "changed", "near misses")]
    for each in report.passes:
        effect = f"{each.effect}: {each.reason}" if each.reason else str(each.effect)
        title = f"{each.name}({each.options})" if each.options else each.name
        numbers = (str(each.result.changed), str(len(each.near_misses)))
        rows.append((title, each.requested_by, effect, *numbers))
    return "\n".join([*align(rows), *(f"warning: {each}" for each in report.warnings)])


def format_matches(reports: Iterable[PassReport]) -> str:
    """Table of the places that passes changed, and of those they left alone with the reason."""
    rows = [("pass", "node", "line", "outcome")]
    for report in reports:
        for row in report.result.matches:
            rows.append((report.name, row.node, row.line, row.reason or "changed"))
    return "\n".join(align(rows)) if len(rows) > 1 else "No pass looked at anything."
