"""Logical axes of ranks: which group of this process each one means. Starts no rank.

A graph names an axis, `group="tp"`, and holds nothing of the group but its size, in shapes. The
launcher sets the groups before anything is traced or run; an axis that nobody set is a world of
one rank.
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ir_core.errors import IrError, UnknownNameError
from ir_core.suggestion import suggest


class GroupError(IrError):
    """A group that cannot be, or one that lacks what a provider needs."""


class UnknownAxisError(UnknownNameError):
    """No group was set for this axis."""


class CollectiveError(IrError, RuntimeError):
    """A collective that did not come about; names op, axis, rank and what went wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """This process's place among the ranks of a logical axis.

    Attributes:
        axis: the name that ops give in their argument `group`.
        rank: this process's, from 0 below `size`.
        size: how many ranks there are.
        transports: what each provider needs to reach the others, by the provider's name: for `gloo`
            and `nccl` a torch process group of these ranks, for `shm` an open segment.
        timeout_s: how long a collective waits for a rank.

    Raises:
        GroupError: a rank that is not one of `size`, or a timeout that is not positive.
    """

    axis: str
    rank: int
    size: int
    transports: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise GroupError(
                f"Axis `{self.axis}`: rank {self.rank} is not one of {self.size}; ranks count from "
                "0."
            )
        if not self.timeout_s > 0:
            raise GroupError(
                f"Axis `{self.axis}`: a timeout of {self.timeout_s} s; it must be positive."
            )

    def transport(self, provider: str) -> Any:
        """What a provider needs.

        Raises:
            GroupError: the launcher gave it nothing; names what the group has.
        """
        try:
            return self.transports[provider]
        except KeyError:
            has = ", ".join(self.transports) or "none"
            raise GroupError(
                f"Provider `{provider}` cannot reach the {self.size} ranks of axis `{self.axis}`: "
                f"the group has no such transport, but {has}. Give it one in `Group.transports`."
            ) from None


class _Axes:
    """What each axis means now; a fresh mapping with each change, so that readers keep theirs.

    An object of its own, whose contents no fingerprint reads: what a graph depends on, the sizes,
    is told by `axis_sizes`, and the rest differs between ranks that share their code.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: Mapping[str, Group] = {}
        self.listeners: tuple[Callable[[], None], ...] = ()


_axes = _Axes()


def set_group(group: Group) -> None:
    """Make `group` what its axis means in this process, in place of an earlier one."""
    _replace({group.axis: group})


def unset_group(axis: str) -> None:
    """Make the axis a world of one rank again; nothing happens if it is."""
    _replace({axis: None})


def get_group(axis: str) -> Group:
    """The group of an axis; a world of one rank if nobody set it."""
    group = _axes.groups.get(axis)
    return Group(axis, 0, 1) if group is None else group


def require_group(axis: str) -> Group:
    """The group that was set for an axis.

    Raises:
        UnknownAxisError: nobody set one; names the axes that are there.
    """
    group = _axes.groups.get(axis)
    if group is None:
        known = suggest(axis, _axes.groups) if _axes.groups else "no axis was set in this process."
        raise UnknownAxisError(f"No group of ranks for axis `{axis}`; {known}")
    return group


def axis_sizes() -> Mapping[str, int]:
    """Ranks of each axis that was set, in order of names: what graphs depend on."""
    groups = _axes.groups
    return MappingProxyType({axis: groups[axis].size for axis in sorted(groups)})


def axis_transports() -> Mapping[str, tuple[str, ...]]:
    """Names of the transports of each axis that was set: what choices of providers rest on."""
    found = {axis: tuple(sorted(group.transports)) for axis, group in _axes.groups.items()}
    return MappingProxyType(dict(sorted(found.items())))


@contextmanager
def scoped_groups(*groups: Group) -> Generator[None]:
    """Set groups for a block, in the whole process, and restore what their axes meant before."""
    before = {group.axis: _axes.groups.get(group.axis) for group in groups}
    _replace({group.axis: group for group in groups})
    try:
        yield
    finally:
        _replace(before)


def subscribe(listener: Callable[[], None]) -> None:
    """Call `listener` after each change, as an op does that remembers who was chosen."""
    with _axes.lock:
        _axes.listeners = (*_axes.listeners, listener)


def _replace(changes: Mapping[str, Group | None]) -> None:
    with _axes.lock:
        merged = {**_axes.groups, **changes}
        _axes.groups = {axis: group for axis, group in merged.items() if group is not None}
    for listener in _axes.listeners:
        listener()
