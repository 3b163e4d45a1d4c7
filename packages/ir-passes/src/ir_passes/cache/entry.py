"""An entry whose manifest is verified, what cannot be used instead, and how one is opened.

Files are verified when they are read, on the very bytes that the reader gets.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ir_passes.cache.layout import ENTRIES, FORMAT, MANIFEST
from ir_passes.cache.manifest import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    Factors,
    FileRecord,
    Manifest,
)
from ir_passes.cache.manifest_parser import parse_document, parse_manifest
from ir_passes.cache.safe_files import PrivateDirectory, open_below
from ir_passes.cache.trust import Trust
from ir_passes.errors import (
    CacheError,
    CorruptEntryError,
    UnreadableEntryError,
    UntrustedEntryError,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified manifest; its files are not read yet.

    Attributes:
        directory: where it lies.
        key: what finds it; the digest of `factors`.
        id: what tells it from others under its key; the digest of its files' names and digests.
        factors: everything that decided it before a trace.
        facts: who made it, for people.
        created: when, in UTC.
        num_bytes: the size of its files.
        files: name -> size and digest.
    """

    directory: Path
    key: str
    id: str
    factors: Factors
    facts: Mapping[str, str]
    created: datetime
    num_bytes: int
    files: Mapping[str, FileRecord]

    def read(self, name: str) -> bytes:
        """Read and verify a file.

        Raises:
            CorruptEntryError: it is not what the manifest says, or is gone.
            UntrustedEntryError: others could have written it.
            UnreadableEntryError: the system does not give it now; it may be sound.
        """
        return self._read([name])[name]

    def read_all(self) -> dict[str, bytes]:
        """Read and verify all files; errors as of `read`."""
        return self._read(list(self.files))

    @property
    def manifest(self) -> Manifest:
        """Its content without its place."""
        return Manifest(self.factors, self.facts, self.created, self.files)

    def _read(self, names: list[str]) -> dict[str, bytes]:
        try:
            with open_entry_directory(self.directory.parents[3], self.key, self.id) as directory:
                return {name: read_file(directory, name, self.files) for name in names}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CorruptEntryError(
                f"{self.directory} is gone or not whole: {error.strerror}"
            ) from error
        except OSError as error:
            raise UnreadableEntryError(_unreadable(self.directory, error)) from error


@dataclass(frozen=True, slots=True)
class Refused:
    """What is in the cache and cannot be used.

    Attributes:
        directory: the entry, or the directory above it that is the reason.
        key: what it would have been found by; "" if that is unknown.
        kind: "untrusted", "corrupt", "unreadable" or "format".
        reason: what is wrong and what to do.
    """

    directory: Path
    key: str
    kind: str
    reason: str


def open_entry_directory(root: Path, key: str, entry_id: str) -> PrivateDirectory:
    """Open an entry step by step from the root; errors as of `PrivateDirectory`."""
    with ExitStack() as opened:
        _, home = open_below(root, (ENTRIES, key[:2], key), opened)
        return home.enter(entry_id)


def read_file(directory: PrivateDirectory, name: str, files: Mapping[str, FileRecord]) -> bytes:
    """Read a file below an entry's directory and verify it against its record."""
    record = files.get(name)
    if record is None:
        raise CorruptEntryError(f"{directory.path} has no file `{name}`")
    *folders, last = name.split("/")
    with ExitStack() as opened:
        folder = directory.descend(folders, opened)
        content = folder.read(last, limit=MAX_FILE_BYTES, size=record.size)
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise CorruptEntryError(f"{directory.path / name} is not what its manifest says")
    return content


def read_manifest(directory: PrivateDirectory, trust: Trust) -> Manifest | str:
    """The manifest in a directory, or the format that it has instead of this one.

    Raises `CorruptEntryError` and `UntrustedEntryError`, and OSError where it cannot be read.
    """
    content = directory.read(MANIFEST, limit=MAX_MANIFEST_BYTES)
    try:
        document = parse_document(content)
        if document.get("format") != FORMAT or type(document["format"]) is not int:
            return f"{document.get('format')!r:.40}"
        refusal = trust.refusal(document)
        manifest = parse_manifest(document)
    except CorruptEntryError as error:
        raise CorruptEntryError(f"{directory.path}: {error}") from error
    if refusal:
        raise UntrustedEntryError(f"{directory.path}: {refusal}{_remedy(directory.path)}")
    return manifest


def inspect_entry(
    home: PrivateDirectory, key: str, name: str, trust: Trust
) -> Entry | Refused | None:
    """Open the entry of that name in its key's directory; None if it vanished meanwhile."""
    path = home.path / name
    try:
        with home.enter(name) as directory:
            manifest = read_manifest(directory, trust)
        return _in_its_place(path, key, manifest)
    except CacheError as error:
        kind = "untrusted" if isinstance(error, UntrustedEntryError) else "corrupt"
        reason = str(error)
    except (FileNotFoundError, NotADirectoryError):
        if name not in home.names():
            return None
        kind, reason = "corrupt", f"{path} has no manifest"
    except OSError as error:
        kind, reason = "unreadable", _unreadable(path, error)
    return Refused(path, key, kind, reason)


def entry_of(path: Path, manifest: Manifest) -> Entry:
    """The entry of a verified manifest."""
    return Entry(
        directory=path,
        key=manifest.key,
        id=manifest.id,
        factors=manifest.factors,
        facts=manifest.facts,
        created=manifest.created,
        num_bytes=manifest.num_bytes,
        files=manifest.files,
    )


def _in_its_place(path: Path, key: str, manifest: Manifest | str) -> Entry | Refused:
    if isinstance(manifest, str):
        reason = f"{path} has the format {manifest}; this release reads {FORMAT}"
        return Refused(path, key, "format", reason)
    if (manifest.key, manifest.id) != (key, path.name):
        raise CorruptEntryError(f"{path} is the entry of {manifest.key}/{manifest.id}")
    return entry_of(path, manifest)


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read now: {error.strerror or error}"


def _remedy(path: Path) -> str:
    return f"; if you trust where it comes from: `serve-shim cache import {shlex.quote(str(path))}`"
