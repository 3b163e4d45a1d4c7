"""How an entry comes to be: built aside, brought to the disk, and renamed into place at once.

Whoever looks sees the whole entry or none, whenever the writer or the machine stops.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ir_passes.cache.entry import Entry, Refused, entry_of, inspect_entry
from ir_passes.cache.layout import ENTRIES, MANIFEST, TEMPORARY
from ir_passes.cache.locking import try_lock
from ir_passes.cache.manifest import Manifest
from ir_passes.cache.quarantine import set_aside
from ir_passes.cache.safe_files import PrivateDirectory, make_directories
from ir_passes.cache.trust import Trust
from ir_passes.config import CacheTrust
from ir_passes.errors import CacheError, UnreadableEntryError

_log = logging.getLogger(__name__)
_ATTEMPTS = 10
_MARK_TIMEOUT_S = 1.0
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def publish_entry(
    root: Path, manifest: Manifest, contents: Mapping[str, bytes], trust: Trust
) -> Entry:
    """Store an entry, or find it stored already; it is sound, believed and on the disk.

    Raises OSError as the machine does, `UntrustedEntryError` for a cache that others can write, and
    `UnreadableEntryError` where an equal entry is there and cannot be read.
    """
    make_directories(root)
    with PrivateDirectory.open(root) as top, staging(top) as (temporary, draft):
        _write_files(draft, contents)
        draft.write(MANIFEST, trust.seal(manifest))
        draft.sync()
        return _move_into_place(top, temporary, draft.path.name, manifest, trust)


@contextmanager
def staging(root: PrivateDirectory) -> Generator[tuple[PrivateDirectory, PrivateDirectory]]:
    """A new directory below the temporary one, with that; gone at the end if still there."""
    name = uuid.uuid4().hex
    with root.make(TEMPORARY) as temporary:
        try:
            with temporary.make(name) as draft:
                # Tells who collects garbage that the writer is alive.
                try_lock(draft.descriptor, shared=True)
                yield temporary, draft
        finally:
            with suppress(OSError):
                shutil.rmtree(name, dir_fd=temporary.descriptor)


def discard(root: PrivateDirectory, parent: PrivateDirectory, name: str) -> None:
    """Remove a directory: nobody sees a part of it. OSError if it cannot be moved."""
    with root.make(TEMPORARY) as temporary:
        aside = uuid.uuid4().hex
        os.rename(name, aside, src_dir_fd=parent.descriptor, dst_dir_fd=temporary.descriptor)
        shutil.rmtree(aside, ignore_errors=True, dir_fd=temporary.descriptor)


def _write_files(draft: PrivateDirectory, contents: Mapping[str, bytes]) -> None:
    folders: set[tuple[str, ...]] = set()
    for name, content in contents.items():
        *parts, last = name.split("/")
        folders.update(tuple(parts[: depth + 1]) for depth in range(len(parts)))
        with ExitStack() as opened:
            draft.descend(parts, opened, make=True).write(last, content)
    for parts in folders:
        with ExitStack() as opened:
            draft.descend(parts, opened).sync()


def _move_into_place(
    root: PrivateDirectory, temporary: PrivateDirectory, name: str, manifest: Manifest, trust: Trust
) -> Entry:
    problem = OSError(errno.EBUSY, "others keep changing the place of the entry")
    for _ in range(_ATTEMPTS):
        try:
            with ExitStack() as opened:
                parts = (ENTRIES, manifest.key[:2], manifest.key)
                home = root.descend(parts, opened, make=True)
                if entry := _move_or_settle(root, temporary, name, home, manifest, trust):
                    return entry
        except FileNotFoundError as error:
            problem = error  # the directory of the key was empty and removed meanwhile
    raise problem


def _move_or_settle(
    root: PrivateDirectory,
    temporary: PrivateDirectory,
    name: str,
    home: PrivateDirectory,
    manifest: Manifest,
    trust: Trust,
) -> Entry | None:
    try:
        os.rename(name, manifest.id, src_dir_fd=temporary.descriptor, dst_dir_fd=home.descriptor)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return _settle(root, home, manifest, trust)
    home.sync()
    return entry_of(home.path / manifest.id, manifest)


def _settle(
    root: PrivateDirectory, home: PrivateDirectory, manifest: Manifest, trust: Trust
) -> Entry | None:
    """The entry that was first, if it is as good as ours; else it makes room."""
    with ExitStack() as opened:
        # Marked, so that no collection removes it while it is verified.
        with suppress(CacheError, NotADirectoryError):
            winner = opened.enter_context(home.enter(manifest.id))
            try_lock(winner.descriptor, shared=True, timeout_s=_MARK_TIMEOUT_S)
        found = inspect_entry(home, manifest.key, manifest.id, trust)
        if isinstance(found, Refused) and found.kind == "unreadable":
            raise UnreadableEntryError(found.reason)
        problem = _problem(found)
        if found is None or (isinstance(found, Entry) and not problem):
            return found
        if isinstance(found, Refused) and _is_sound(home, manifest, trust):
            # It holds the very same files, and only nothing that we believe says so.
            _log.info("%s takes the place of an equal one of unknown origin", found.directory)
            discard(root, home, manifest.id)
        else:
            seen = found if isinstance(found, Entry) else None
            set_aside(root, home, manifest.id, problem, seen)
        return None


def _is_sound(home: PrivateDirectory, manifest: Manifest, trust: Trust) -> bool:
    """Whether the files are what the manifest says, whoever wrote it."""
    anyone = replace(trust, kind=CacheTrust.DIRECTORY)
    found = inspect_entry(home, manifest.key, manifest.id, anyone)
    return isinstance(found, Entry) and not _problem(found)


def _problem(found: Entry | Refused | None) -> str:
    if found is None or isinstance(found, Refused):
        return found.reason if found else ""
    try:
        for name in found.files:
            found.read(name)
    except UnreadableEntryError:
        raise
    except CacheError as error:
        return str(error)
    return ""
