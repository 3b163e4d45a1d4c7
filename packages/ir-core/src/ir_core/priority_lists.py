"""Ordered provider lists per op: what users ask for, checked, and how it resolves with defaults.

The user's list comes first (a scoped override before the process-wide one), then what timing chose
for such calls, then the platform's default, then `native`. Chooses nothing: that is `dispatch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir_core.errors import PriorityError
from ir_core.implementation import NATIVE

USER = "user"
TUNED = "autotuned"
PriorityLists = Mapping[str, "str | Sequence[str]"]


class IrOpPriorityConfig(Mapping[str, tuple[str, ...]]):
    """Immutable provider lists by op name; open to any op, in-tree or not.

    `IrOpPriorityConfig(rms_norm=["aiter", "vllm_c"])` or `rms_norm="aiter,vllm_c"`. Checks the
    form only; `check_priority` checks the names.

    Raises:
        PriorityError: an empty list, an empty or repeated name, or something that is no list.
    """

    __slots__ = ("_lists",)

    def __init__(self, lists: PriorityLists | None = None, /, **ops: str | Sequence[str]) -> None:
        given = {**(lists or {}), **ops}
        self._lists = {op: parse_providers(op, providers) for op, providers in given.items()}

    def __getitem__(self, op: str) -> tuple[str, ...]:
        return self._lists[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __hash__(self) -> int:
        return hash(frozenset(self._lists.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._lists == dict(other)

    def __repr__(self) -> str:
        return f"IrOpPriorityConfig({self._lists!r})"


@dataclass(frozen=True, slots=True)
class PriorityEntry:
    """One provider of a resolved list.

    `source` is "user", "autotuned", "platform NAME" or "fallback".
    """

    provider: str
    source: str


@dataclass(frozen=True, slots=True)
class ResolvedPriority:
    """The effective order of providers for one op, each with its source."""

    op: str
    entries: tuple[PriorityEntry, ...]

    @property
    def providers(self) -> tuple[str, ...]:
        """Provider names in order."""
        return tuple(entry.provider for entry in self.entries)


def parse_providers(op: str, providers: object) -> tuple[str, ...]:
    """Provider names of one list, given as a sequence or as "a,b".

    Raises:
        PriorityError: an empty list, an empty or repeated name, or something that is no list.
    """
    where = f"Priority of op `{op}`"
    if isinstance(providers, str):
        providers = providers.split(",")
    if not isinstance(providers, Sequence) or not all(isinstance(p, str) for p in providers):
        raise PriorityError(f"{where} is {providers!r}; give names, as a list or as `a,b`.")
    names = tuple(str(name).strip() for name in providers)
    if not names or names == ("",):
        raise PriorityError(f"{where} is empty; name a provider or leave the op out.")
    if "" in names:
        raise PriorityError(f"{where} has an empty name in {list(names)}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PriorityError(f"{where} names {repeated} more than once.")
    return names


def resolve(
    op: str,
    registered: Sequence[str],
    user: Sequence[str],
    default: Sequence[str],
    platform: str,
    tuned: Sequence[str] = (),
) -> ResolvedPriority:
    """Join the lists in the order of `user`, `tuned`, `default` and native.

    Whatever is not registered drops out.
    """
    entries = [PriorityEntry(provider, USER) for provider in user]
    entries += [PriorityEntry(provider, TUNED) for provider in tuned]
    entries += [PriorityEntry(name, f"platform {platform}") for name in default]
    entries.append(PriorityEntry(NATIVE, "fallback"))
    first: dict[str, PriorityEntry] = {}
    for entry in entries:
        if entry.provider in registered:
            first.setdefault(entry.provider, entry)
    return ResolvedPriority(op, tuple(first.values()))
