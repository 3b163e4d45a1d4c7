"""The cache on disk as its users see it: found by key, verified, published, collected.

Faults of the machine never reach a caller: a store that cannot read has no entries, and one that
cannot write stores nothing and says so once. Faults of the trust do not either: what cannot be
believed is `Refused`, with the command that settles it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from ir_passes.cache.entry import Entry, Refused, open_entry_directory
from ir_passes.cache.gc import Removed, collect_garbage
from ir_passes.cache.layout import ENTRIES, LOCKS
from ir_passes.cache.listing import (
    find_entries,
    list_keys,
    list_other_formats,
    refuse_no_key,
)
from ir_passes.cache.locking import holder_of, lock_file, try_lock
from ir_passes.cache.manifest import (
    MAX_ENTRY_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    Factors,
    Manifest,
)
from ir_passes.cache.publishing import publish_entry
from ir_passes.cache.quarantine import set_aside
from ir_passes.cache.safe_files import PrivateDirectory, make_directories, open_below
from ir_passes.cache.trust import ANYONE, Trust, publishing_trust, reading_trust
from ir_passes.config import CacheTrust
from ir_passes.errors import CacheError

_log = logging.getLogger(__name__)
_MARK_TIMEOUT_S = 1.0


class CacheStore:
    """Entries below one root.

    Args:
        root: the cache's directory; it need not be there.
        key_file: the key that vouches for entries; by default that of the user. It is made by the
            first publication.
        trust: whether entries need the key's code, or lying in the directory is enough.
        max_bytes: the size to which publications shrink the cache; None for no limit.
        writable: False leaves everything as it is: no entry, lock, key, mark or time is written.
    """

    def __init__(
        self,
        root: Path,
        *,
        key_file: Path | None = None,
        trust: CacheTrust = CacheTrust.VERIFIED,
        max_bytes: int | None = None,
        writable: bool = True,
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self._key_file = key_file
        self._trust = trust
        self._max_bytes = max_bytes
        self._writable = writable
        self._said: set[str] = set()

    def require_writable(self) -> None:
        """Raise CacheError for a store that was opened for reading only."""
        if not self._writable:
            raise CacheError(f"The compile cache {self.root} is opened for reading only.")

    def candidates(self, key: str) -> Iterator[Entry | Refused]:
        """What is stored under a key: entries, the newest first, then what cannot be used.

        Corrupt ones are set aside where the store is writable; each gives one warning.
        """
        found = find_entries(self.root, key, reading_trust(self._trust, self._key_file, self.root))
        for each in found:
            if isinstance(each, Refused) and each.kind == "corrupt":
                self.quarantine(each.directory, each.reason)
        yield from found

    def entries(self) -> Iterator[Entry | Refused]:
        """Everything in the cache by key, as it is: nothing is set aside."""
        yield from self._all(reading_trust(self._trust, self._key_file, self.root))

    def foreign_entries(self) -> Iterator[Entry | Refused]:
        """The same, whoever wrote them: to be shown or taken in, never to be used."""
        yield from self._all(ANYONE)

    def _all(self, trust: Trust) -> Iterator[Entry | Refused]:
        for key in list_keys(self.root):
            yield from [key] if isinstance(key, Refused) else find_entries(self.root, key, trust)
        yield from list_other_formats(self.root)

    def publish(
        self, factors: Factors, files: Mapping[str, bytes], facts: Mapping[str, str]
    ) -> Entry | None:
        """Store files under the key of factors; None, with one warning, where that fails.

        Raises ValueError for names of files that no entry can hold and TypeError for factors that
        are no text. An equal entry that is there already is verified and returned.
        """
        if not self._writable:
            return None
        manifest = Manifest.of(factors, facts, files)
        try:
            entry = self.adopt(manifest, files)
            self._evict(entry)
        except OSError as error:
            _log.warning(
                "The compile cache could not store an entry in %s: %s. Make room or allow to write "
                "there, name another directory with `--cache-dir`, or use `--cache-mode=ro`.",
                self.root,
                error.strerror or error,
            )
            return None
        except CacheError as error:
            self._say_once(str(error))
            return None
        return entry

    def adopt(self, manifest: Manifest, contents: Mapping[str, bytes]) -> Entry:
        """Store an entry made elsewhere, vouched for with this user's key.

        Who calls has verified that the contents are what the manifest says. Raises CacheError, and
        OSError as the machine does.
        """
        self.require_writable()
        trust = publishing_trust(self._trust, self._key_file, self.root)
        self._refuse_too_large(manifest, trust)
        return publish_entry(self.root, manifest, contents, trust)

    def quarantine(self, entry_or_directory: Entry | Path, reason: str) -> None:
        """Set an entry aside, with the reason; one warning, and never an error.

        An equal entry that was published in its place since it was found stays.
        Raises ValueError for a directory that is no entry's place in this cache.
        """
        seen = entry_or_directory if isinstance(entry_or_directory, Entry) else None
        path = (
            entry_or_directory
            if isinstance(entry_or_directory, Path)
            else (entry_or_directory.directory)
        )
        parts = path.relative_to(self.root).parts
        if len(parts) != 4 or parts[0] != ENTRIES:
            raise ValueError(f"{path} is no entry of the cache {self.root}")
        if not self._writable:
            _log.warning("The compile cache does not use an entry: %s", reason)
            return
        with suppress(OSError, CacheError), ExitStack() as opened:
            root, parent = open_below(self.root, parts[:-1], opened)
            set_aside(root, parent, parts[-1], reason, seen)

    @contextmanager
    def in_use(self, entry: Entry) -> Generator[bool]:
        """Mark an entry as used, now and until the end; False if it is gone or has no lock."""
        with ExitStack() as opened:
            is_marked = False
            with suppress(OSError, CacheError):
                is_marked = self._mark(entry, opened)
            yield is_marked

    @contextmanager
    def lock(self, key: str, timeout_s: float) -> Generator[bool]:
        """Be the only one to make an entry of a key; False if that is not obtained in time.

        Who gets False goes on without storing.
        """
        with ExitStack() as opened:
            is_held = False
            if self._writable:
                try:
                    is_held = self._lock(key, timeout_s, opened)
                except CacheError as error:
                    self._say_once(f"The compile cache stores nothing: {error}.")
                except OSError as error:
                    _log.info("The compile cache cannot lock in %s: %s", self.root, error)
            yield is_held

    def collect(
        self,
        *,
        max_bytes: int | None = None,
        older_than: timedelta | None = None,
        other_formats: bool = False,
    ) -> list[Removed]:
        """Remove what is abandoned, not used for that long, or above a size, oldest use first.

        Entries in use stay. Raises OSError and `UntrustedEntryError` for a root that cannot be
        read, or that others can write.
        """
        if not self._writable:
            return []
        limit = self._max_bytes if max_bytes is None else max_bytes
        return collect_garbage(
            self.root, max_bytes=limit, older_than=older_than, other_formats=other_formats
        )

    def _mark(self, entry: Entry, opened: ExitStack) -> bool:
        directory = opened.enter_context(open_entry_directory(self.root, entry.key, entry.id))
        if not try_lock(directory.descriptor, shared=True, timeout_s=_MARK_TIMEOUT_S):
            return False
        # Who had the lock may have been the one who removed it.
        with open_entry_directory(self.root, entry.key, entry.id) as found:
            if not os.path.sameopenfile(directory.descriptor, found.descriptor):
                return False
        if self._writable:
            with suppress(OSError):
                os.utime(directory.descriptor)
        return True

    def _refuse_too_large(self, manifest: Manifest, trust: Trust) -> None:
        largest = max((record.size for record in manifest.files.values()), default=0)
        limit = min(MAX_ENTRY_BYTES, self._max_bytes or MAX_ENTRY_BYTES)
        problems = {
            f"{manifest.num_bytes} bytes, over {limit}": manifest.num_bytes > limit,
            f"a file of {largest} bytes, over {MAX_FILE_BYTES}": largest > MAX_FILE_BYTES,
            f"{len(manifest.files)} files, over {MAX_FILES}": len(manifest.files) > MAX_FILES,
            "a manifest that is too large": len(trust.seal(manifest)) > MAX_MANIFEST_BYTES,
        }
        for problem, is_one in problems.items():
            if is_one:
                raise CacheError(f"The compile cache stores no entry with {problem}.")

    def _evict(self, entry: Entry) -> None:
        if self._max_bytes is not None:
            with suppress(OSError, CacheError), self.in_use(entry):
                self.collect()

    def _lock(self, key: str, timeout_s: float, opened: ExitStack) -> bool:
        refuse_no_key(key)
        make_directories(self.root)
        root = opened.enter_context(PrivateDirectory.open(self.root))
        locks = opened.enter_context(root.make(LOCKS))
        name = f"{key}.lock"
        if opened.enter_context(lock_file(locks, name, timeout_s)):
            return True
        _log.warning(
            "The compile cache was locked for %g s by %s; going on without storing.",
            timeout_s,
            holder_of(locks, name),
        )
        return False

    def _say_once(self, message: str) -> None:
        level = logging.DEBUG if message in self._said else logging.WARNING
        self._said.add(message)
        _log.log(level, "%s", message)
