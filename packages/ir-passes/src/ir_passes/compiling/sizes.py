"""The sizes that a program serves: ranges and static sizes, and which guards each one breaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import sympy

from ir_passes.base import SizeRange
from ir_passes.shape_guard import BrokenGuard, ShapeGuard
from ir_passes.tracing.dynamic_dims import TOKENS

# Guards over two labels are evaluated at the ends of their ranges, where they change.
_CORNERS = 3


def plan_ranges(
    limit: int | None, endpoints: Iterable[int], static: Iterable[int]
) -> tuple[SizeRange, ...]:
    """One range for each static size, then those between endpoints, which cover 1 to `limit`.

    An endpoint is the last size of a range. Sizes beyond the limit are left out.
    """
    known = sorted({each for each in endpoints if limit is None or each < limit})
    single = (each for each in sorted(set(static)) if limit is None or each <= limit)
    firsts = [1, *(each + 1 for each in known)]
    between = (SizeRange(*ends) for ends in zip(firsts, [*known, limit], strict=True))
    return (*(SizeRange(each, each) for each in single), *between)


def broken_guards(
    guards: Iterable[ShapeGuard],
    symbols: Mapping[str, frozenset[sympy.Symbol]],
    limits: Mapping[str, int],
) -> tuple[BrokenGuard, ...]:
    """Every guard that some served size breaks, once for each token count that does.

    Args:
        symbols: by label, the symbols that stand for its size.
        limits: the greatest size of each label; sizes begin with 1.
    """
    return tuple(
        broken
        for guard in guards
        if guard.formula is not None
        for broken in _broken_sizes(guard, symbols, limits)
    )


def unjudged_guards(
    guards: Iterable[ShapeGuard],
    symbols: Mapping[str, frozenset[sympy.Symbol]],
    limits: Mapping[str, int],
) -> tuple[ShapeGuard, ...]:
    """Guards that cannot be evaluated for all sizes: over a size without a label or a limit."""
    known = frozenset().union(*(symbols.get(label, frozenset()) for label in limits))
    return tuple(
        each for each in guards if each.formula is None or each.formula.free_symbols - known
    )


def _broken_sizes(
    guard: ShapeGuard,
    symbols: Mapping[str, frozenset[sympy.Symbol]],
    limits: Mapping[str, int],
) -> Iterator[BrokenGuard]:
    free = guard.formula.free_symbols
    labels = [label for label, known in symbols.items() if free & known]
    named = frozenset().union(*(symbols[label] for label in labels))
    if not labels or free - named or any(label not in limits for label in labels):
        return
    for sizes in _combinations(labels, limits):
        values = {
            symbol: sympy.Integer(sizes[label]) for label in labels for symbol in symbols[label]
        }
        if guard.formula.xreplace(values) == sympy.false:
            yield BrokenGuard(guard, sizes)


def _combinations(labels: Sequence[str], limits: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    if len(labels) == 1:
        (label,) = labels
        yield from ({label: size} for size in range(1, limits[label] + 1))
        return
    for values in product(*(_ends(limits[label]) for label in labels)):
        yield dict(zip(labels, values, strict=True))


def _ends(limit: int) -> list[int]:
    low = range(1, min(limit, _CORNERS) + 1)
    return sorted({*low, *(max(1, limit - each) for each in range(_CORNERS))})


def token_sizes(broken: Iterable[BrokenGuard]) -> tuple[int, ...]:
    """The token counts among broken sizes, each once."""
    return tuple(sorted({each.sizes[TOKENS] for each in broken if TOKENS in each.sizes}))
