"""Providers by the number of a call's rows: ranges that follow one another, from one row to any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class LaterRange:
    """Calls of `first` rows and more get another provider than calls of fewer rows."""

    first: int
    provider: str


@dataclass(frozen=True, slots=True)
class RowRange:
    """The provider of calls with so many rows, both ends included; `last` is None without end."""

    first: int
    last: int | None
    provider: str

    def __str__(self) -> str:
        return f"{self.first}..{'' if self.last is None else self.last}: {self.provider}"

    def meets(self, fewest: int, most: int | None) -> bool:
        """Whether a call that has so many rows may be one of these; none at all are as one."""
        is_over = self.last is not None and fewest > self.last
        return not is_over and (most is None or max(most, 1) >= self.first)


def ranges_of(provider: str, later: Sequence[LaterRange]) -> tuple[RowRange, ...]:
    """All ranges: the first one's provider, and those after it."""
    starts = (LaterRange(1, provider), *later)
    lasts = (*(each.first - 1 for each in later), None)
    pairs = zip(starts, lasts, strict=True)
    return tuple(RowRange(start.first, last, start.provider) for start, last in pairs)


def later_from(provider: str, rows: Any) -> tuple[LaterRange, ...]:
    """The ranges after the first from pairs of JSON. Raises TypeError or ValueError for others."""
    later = tuple(LaterRange(int(first), str(name)) for first, name in rows)
    for before, after in pairwise((LaterRange(1, provider), *later)):
        if before.first >= after.first or before.provider == after.provider:
            raise ValueError(f"these are no ranges of rows: {provider}, {rows}")
    return later
