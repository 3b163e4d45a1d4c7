"""What leaves the cache: the least recently used first, never what someone uses.

Locks tell what is in use; where a file system has none, everything counts as used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ir_passes.cache.layout import (
    ENTRIES,
    LOCKS,
    QUARANTINE,
    TEMPORARY,
    is_digest,
    is_format_directory,
)
from ir_passes.cache.locking import try_lock
from ir_passes.cache.publishing import discard
from ir_passes.cache.safe_files import PrivateDirectory
from ir_passes.errors import CacheError

# A writer takes its lock right after it made its directory.
_DRAFT_AGE = timedelta(minutes=1)
_QUARANTINE_AGE = timedelta(days=30)
_LOCK_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Removed:
    """Something that was removed, its size and why."""

    path: Path
    num_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Item:
    parts: tuple[str, ...]
    num_bytes: int
    used: float


def collect_garbage(
    root: Path,
    *,
    max_bytes: int | None = None,
    older_than: timedelta | None = None,
    other_formats: bool = False,
) -> list[Removed]:
    """Remove what is abandoned, too old, or too much; nothing for a cache that is not there.

    Raises OSError for a cache that cannot be read and `UntrustedEntryError` for one that others
    can write; single things that cannot be removed stay.
    """
    try:
        top = PrivateDirectory.open(root)
    except FileNotFoundError:
        return []
    with top:
        _remove_locks(top)
        removed = [
            *_remove_old(top, _items(top, (TEMPORARY,), 1), _DRAFT_AGE, "abandoned"),
            *_remove_old(top, _items(top, (QUARANTINE,), 1), _QUARANTINE_AGE, "old evidence"),
        ]
        if older_than is not None:
            removed += _remove_old(top, _entries(top), older_than, "not used for long")
        if max_bytes is not None:
            removed += _remove_surplus(top, list(_entries(top)), max_bytes)
        if other_formats:
            removed += _remove_other_formats(top)
        return removed


def _remove_old(
    root: PrivateDirectory, items: Iterable[_Item], age: timedelta, reason: str
) -> Iterator[Removed]:
    limit = time.time() - age.total_seconds()
    for item in items:
        if item.used <= limit and _remove(root, item):
            yield _removed(root, item, reason)


def _remove_surplus(root: PrivateDirectory, items: list[_Item], limit: int) -> Iterator[Removed]:
    total = sum(item.num_bytes for item in items)
    for item in sorted(items, key=lambda item: item.used):
        if total <= limit:
            return
        if _remove(root, item):
            total -= item.num_bytes
            yield _removed(root, item, "least recently used")


def _remove_other_formats(root: PrivateDirectory) -> Iterator[Removed]:
    others = (name for name in root.names() if is_format_directory(name) and name != ENTRIES)
    for name in others:
        for item in _items(root, (name,), 0):
            if _remove(root, item):
                yield _removed(root, item, "of another release")


def _entries(root: PrivateDirectory) -> Iterator[_Item]:
    return (item for item in _items(root, (ENTRIES,), 3) if is_digest(item.parts[-1]))


def _items(root: PrivateDirectory, parts: tuple[str, ...], depth: int) -> list[_Item]:
    """The directories that many levels below one; what cannot be opened is left alone."""
    try:
        with ExitStack() as opened:
            directory = root.descend(parts, opened)
            if depth == 0:
                used = os.fstat(directory.descriptor).st_mtime
                return [_Item(parts, _num_bytes(directory), used)]
            names = directory.names()
    except (OSError, CacheError):
        return []
    return [item for name in names for item in _items(root, (*parts, name), depth - 1)]


def _num_bytes(directory: PrivateDirectory) -> int:
    total = 0
    for _, _, names, descriptor in os.fwalk(".", dir_fd=directory.descriptor):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size
    return total


def _remove(root: PrivateDirectory, item: _Item) -> bool:
    *above, name = item.parts
    try:
        with ExitStack() as opened:
            parent = root.descend(above, opened)
            directory = opened.enter_context(parent.enter(name))
            if not try_lock(directory.descriptor, shared=False):
                return False
            discard(root, parent, name)
    except (OSError, CacheError):
        return False
    if item.parts[0] == ENTRIES:
        _remove_empty(root, above)
    return True


def _remove_empty(root: PrivateDirectory, parts: list[str]) -> None:
    with suppress(OSError, CacheError), ExitStack() as opened:
        os.rmdir(parts[-1], dir_fd=root.descend(parts[:-1], opened).descriptor)


def _remove_locks(root: PrivateDirectory) -> None:
    limit = time.time() - _LOCK_AGE.total_seconds()
    with suppress(OSError, CacheError), root.enter(LOCKS) as locks:
        for name in locks.names():
            _remove_lock(locks, name, limit)


def _remove_lock(locks: PrivateDirectory, name: str, limit: float) -> None:
    descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=locks.descriptor)
    try:
        is_old = os.fstat(descriptor).st_mtime <= limit
        if is_old and try_lock(descriptor, shared=False):
            os.unlink(name, dir_fd=locks.descriptor)
    finally:
        os.close(descriptor)


def _removed(root: PrivateDirectory, item: _Item, reason: str) -> Removed:
    return Removed(root.path.joinpath(*item.parts), item.num_bytes, reason)
