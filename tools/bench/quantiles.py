"""Medians and percentiles of samples that may be missing."""

import statistics
from collections.abc import Iterable, Sequence


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The sample nearest to that rank, never a value between two; None of no samples."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[round(percent / 100 * (len(ordered) - 1))]


def median(values: Sequence[float | None]) -> float | None:
    """Median of those present; None if none is."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None
