"""Which of several providers timed in turns is the fastest beyond doubt. Times nothing itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

MARGIN = 0.05
"""How much of another's time a provider must save to take its place."""

_MOST = 0.75

Round = Mapping[str, Mapping[int, float]]
"""Seconds per call of each provider by the number of tokens, all taken in one turn."""


def decide(order: Sequence[str], rounds: Sequence[Round], weights: Mapping[int, float]) -> str:
    """The provider that calls should get.

    The first of `order` keeps its place unless a later one saves the margin in most rounds and in
    their median; that one then defends it alike. So noise below the margin never decides, and of
    equals the earlier stays.

    Args:
        order: all providers of each round, preferred ones first.
        rounds: at least one.
        weights: how much each number of tokens counts.
    """
    best = order[0]
    for challenger in order[1:]:
        ratios = [relative_time(each, challenger, best, weights) for each in rounds]
        wins = sum(ratio < 1 - MARGIN for ratio in ratios)
        if wins >= _MOST * len(ratios) and statistics.median(ratios) < 1 - MARGIN:
            best = challenger
    return best


def relative_time(each: Round, provider: str, other: str, weights: Mapping[int, float]) -> float:
    """A provider's time as a part of another's, as the weighted geometric mean over token counts.

    Ratios rather than sums: the time of a large batch would outweigh all others.
    """
    total = sum(weights.values())
    logs = (
        weight * math.log(each[provider][count] / each[other][count])
        for count, weight in weights.items()
    )
    return math.exp(sum(logs) / total)
