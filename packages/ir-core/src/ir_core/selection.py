"""Selections: which implementation a call gets and why not another; the record of executed ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir_core.implementation import Implementation
    from ir_core.op import IrOp

_logger = logging.getLogger("ir_core.dispatch")

# A reason may name a scalar; one that never repeats must not let the record grow without end.
_MAX_ROWS = 1000
_VARYING = "for more reasons than are kept"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A provider that came first in the priority, and why it was passed over."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The implementation that a call gets, and the providers rejected before it.

    `layout` is that of the call's weights; None for an op without weights.
    """

    op: IrOp
    provider: str
    implementation: Implementation
    rejections: tuple[Rejection, ...]
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutedSelection:
    """One row of the record: a selection that really ran.

    `calls` is a lower bound, at least 1: a call that the fast path answers from memory is not
    counted again. `layout` is that of the weights; None for an op without weights.
    """

    op: str
    provider: str
    calls: int
    rejections: tuple[Rejection, ...]
    layout: str | None = None

    @property
    def used(self) -> str:
        """The provider, and the layout it read in parentheses."""
        return _used(self.provider, self.layout)


_Key = tuple[str, str, str | None, tuple[Rejection, ...]]


class SelectionLog:
    """What was executed since start, one row per distinct selection; safe across threads."""

    def __init__(self) -> None:
        self._calls: dict[_Key, int] = {}
        self._lock = threading.Lock()

    def record(self, selection: Selection, named: Collection[str] = ()) -> None:
        """Note that a selection has run, and log it if it is new.

        The rejection of a provider among `named`, those that the user asked for, is logged at INFO
        and everything else at DEBUG.
        """
        key = (selection.op.name, selection.provider, selection.layout, selection.rejections)
        with self._lock:
            if key not in self._calls and len(self._calls) >= _MAX_ROWS:
                varying = tuple(Rejection(each.provider, _VARYING) for each in key[3])
                key = (*key[:3], varying)
            calls = self._calls.get(key, 0)
            self._calls[key] = calls + 1
        if calls == 0:
            _log(selection, named)

    def __len__(self) -> int:
        return len(self._calls)

    def adopt(self, rows: Iterable[ExecutedSelection]) -> None:
        """Show what another process has executed, in place of what it had before."""
        with self._lock:
            for row in rows:
                self._calls[row.op, row.provider, row.layout, row.rejections] = row.calls

    def rows(self) -> tuple[ExecutedSelection, ...]:
        """All rows, ordered by op and then by first execution."""
        with self._lock:
            items = sorted(self._calls.items(), key=lambda item: item[0][0])
        return tuple(
            ExecutedSelection(op, provider, calls, rejections, layout)
            for (op, provider, layout, rejections), calls in items
        )


def format_selections(rows: Iterable[ExecutedSelection]) -> str:
    """Text table: op, provider used with the layout it read, each rejection with its reason."""
    rows = tuple(rows)
    if not rows:
        return "No op was executed."
    op_width = max(len("op"), *(len(row.op) for row in rows))
    provider_width = max(len("used"), *(len(row.used) for row in rows))
    lines = [f"{'op':{op_width}}  {'used':{provider_width}}  rejected"]
    for row in rows:
        reasons = "; ".join(f"{each.provider}: {each.reason}" for each in row.rejections) or "-"
        lines.append(f"{row.op:{op_width}}  {row.used:{provider_width}}  {reasons}")
    return "\n".join(lines)


def _log(selection: Selection, named: Collection[str]) -> None:
    op = selection.op.name
    for rejection in selection.rejections:
        level = logging.INFO if rejection.provider in named else logging.DEBUG
        _logger.log(level, "%s: rejected `%s`: %s", op, rejection.provider, rejection.reason)
    used = _used(selection.provider, selection.layout)
    _logger.debug("%s: used `%s` (%s)", op, used, selection.implementation.location)


def _used(provider: str, layout: str | None) -> str:
    return provider if layout is None else f"{provider} ({layout})"
