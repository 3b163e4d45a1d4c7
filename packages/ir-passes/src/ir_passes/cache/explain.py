"""Why nothing in a store fits: the stored factors that come nearest, and what differs in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ir_passes.cache.entry import Entry, Refused
from ir_passes.cache.manifest import Factors
from ir_passes.cache.store import CacheStore

_MOST_SHOWN = 160


def explain_miss(store: CacheStore, factors: Factors) -> tuple[str, ...]:
    """Lines that say how the nearest entry differs; one line where none can be used."""
    found = list(store.entries())
    entries = [each for each in found if isinstance(each, Entry)]
    if not entries:
        refused = [each for each in found if isinstance(each, Refused)]
        return (_nothing_usable(store, refused),)
    nearest = min(entries, key=lambda each: sum(1 for _ in differing(each.factors, factors)))
    lines = (
        f"{name} is {_shorten(now, was)}, and was {_shorten(was, now)} in {nearest.id[:12]}"
        for name, was, now in differing(nearest.factors, factors)
    )
    return tuple(lines)


def differing(stored: Factors, wanted: Factors) -> Iterator[tuple[str, str | None, str | None]]:
    """Name, stored and wanted value of each factor that differs; None for one that is not there."""
    for name in dict.fromkeys((*wanted, *stored)):
        if stored.get(name) != wanted.get(name):
            yield name, stored.get(name), wanted.get(name)


def _nothing_usable(store: CacheStore, refused: Sequence[Refused]) -> str:
    if not refused:
        return f"the cache {store.root} is empty"
    return (
        f"the cache {store.root} has no entry that can be used; refused: {len(refused)}, "
        f"the first: {refused[0].reason}"
    )


def _shorten(value: str | None, other: str | None) -> str:
    """The value, or of long ones the part that differs."""
    if value is None:
        return "absent"
    if len(value) <= _MOST_SHOWN:
        return f"`{value}`"
    words, others = value.split(), set((other or "").split())
    own = " ".join(word for word in words if word not in others) or value
    return f"`…{own[:_MOST_SHOWN]}…`"
