"""Which of several providers timed in turns is the fastest beyond doubt. Times nothing itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MARGIN = 0.05
"""How much of another's time a provider must save to take its place."""

_MOST = 0.75

Round = Mapping[str, Mapping[int, float]]
"""Seconds per call of each provider by the number of tokens, all taken in one turn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The provider for some of the timed numbers of tokens, which are neighbours, ascending."""

    counts: tuple[int, ...]
    provider: str


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
        if _is_faster(challenger, best, rounds, weights):
            best = challenger
    return best


def decide_by_range(
    order: Sequence[str],
    rounds: Sequence[Round],
    weights: Mapping[int, float],
    ends: Collection[int],
) -> tuple[Verdict, ...]:
    """The provider for each range of numbers of tokens, neighbours with different ones.

    Ranges end where each side's provider is faster than the other side's beyond doubt, by the rule
    of `decide` on the numbers of its own side. Sides that are not so different are one, and
    decided together.

    Args:
        order: as for `decide`.
        rounds: as for `decide`.
        weights: as for `decide`.
        ends: the timed numbers of tokens that may be the last of a range.
    """
    verdicts = [
        _verdict(order, rounds, weights, counts) for counts in _groups(sorted(weights), ends)
    ]
    while (place := _first_doubt(verdicts, rounds, weights)) is not None:
        first, second = verdicts[place : place + 2]
        counts = first.counts + second.counts
        verdicts[place : place + 2] = [_verdict(order, rounds, weights, counts)]
    return tuple(verdicts)


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


def _is_faster(
    challenger: str, best: str, rounds: Sequence[Round], weights: Mapping[int, float]
) -> bool:
    """Whether it saves the margin in most rounds and in their median."""
    ratios = [relative_time(each, challenger, best, weights) for each in rounds]
    wins = sum(ratio < 1 - MARGIN for ratio in ratios)
    return wins >= _MOST * len(ratios) and statistics.median(ratios) < 1 - MARGIN


def _groups(counts: Sequence[int], ends: Collection[int]) -> Iterator[tuple[int, ...]]:
    """The numbers of tokens, cut after each that may be the last of a range."""
    group: list[int] = []
    for count in counts:
        group.append(count)
        if count in ends or count == counts[-1]:
            yield tuple(group)
            group = []


def _verdict(
    order: Sequence[str],
    rounds: Sequence[Round],
    weights: Mapping[int, float],
    counts: tuple[int, ...],
) -> Verdict:
    return Verdict(counts, decide(order, rounds, _only(weights, counts)))


def _first_doubt(
    verdicts: Sequence[Verdict], rounds: Sequence[Round], weights: Mapping[int, float]
) -> int | None:
    """The first of two neighbours that are to be one: equal ones, then those that may be equal."""
    pairs = list(enumerate(pairwise(verdicts)))
    equal = (place for place, (first, second) in pairs if first.provider == second.provider)
    doubtful = (place for place, pair in pairs if not _do_differ(*pair, rounds, weights))
    return next(equal, next(doubtful, None))


def _do_differ(
    first: Verdict, second: Verdict, rounds: Sequence[Round], weights: Mapping[int, float]
) -> bool:
    """Whether each one's provider is faster than the other's where it is the choice."""
    left, right = _only(weights, first.counts), _only(weights, second.counts)
    return _is_faster(first.provider, second.provider, rounds, left) and _is_faster(
        second.provider, first.provider, rounds, right
    )


def _only(weights: Mapping[int, float], counts: Collection[int]) -> dict[int, float]:
    return {count: weight for count, weight in weights.items() if count in counts}
