"""Entries of a directory that was copied here: verified, then vouched for with the user's key."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ir_passes.cache.bundle_index import digest_of
from ir_passes.cache.entry import Entry, Refused, read_file, read_manifest
from ir_passes.cache.layout import MANIFEST
from ir_passes.cache.manifest import Manifest
from ir_passes.cache.safe_files import PrivateDirectory
from ir_passes.cache.store import CacheStore
from ir_passes.cache.trust import ANYONE
from ir_passes.errors import BundleError, CacheError, CorruptEntryError


@dataclass(frozen=True, slots=True)
class _Found:
    directory: Path
    manifest: Manifest

    def read(self) -> Mapping[str, bytes]:
        with PrivateDirectory.open(self.directory) as directory:
            files = self.manifest.files
            return {name: read_file(directory, name, files) for name in files}


def import_directory(
    store: CacheStore, directory: Path, *, sha256: str | None = None, unverified: bool = False
) -> list[Entry]:
    """Take in an entry's directory or those of a whole cache, all or none of them.

    It may be a directory of the store itself, whose entries are then believed where they are.

    Args:
        store: where to.
        directory: one entry, with its manifest, or the root of a cache.
        sha256: what `directory_digest` gave where the entries were made.
        unverified: whether entries without proof of origin are taken in nevertheless.

    Raises:
        BundleError: there is no proof, the wrong one, or no entry.
        CacheError: an entry is not sound, or others can write it; or the store cannot take it in.
    """
    store.require_writable()
    path = Path(os.path.realpath(directory))
    try:
        found = _find(path)
        _require_proof(path, found, sha256, unverified)
        for each in found:
            each.read()
        return [
            store.adopt(each.manifest.with_fact("imported_from", "directory"), each.read())
            for each in found
        ]
    except OSError as error:
        where = error.filename or path
        raise BundleError(f"{path} cannot be imported: {where}: {error.strerror}") from error


def directory_digest(directory: Path) -> str:
    """The digest of all entries in a directory, for who imports it; errors as of the import."""
    path = Path(os.path.realpath(directory))
    try:
        return digest_of(each.manifest for each in _find(path))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


def _find(path: Path) -> list[_Found]:
    if (path / MANIFEST).exists():
        return [_Found(path, _read_manifest(path))]
    found: list[_Found] = []
    for each in CacheStore(path, writable=False).foreign_entries():
        if isinstance(each, Entry):
            found.append(_Found(each.directory, each.manifest))
        elif each.kind != "format":
            raise _error_of(each)
    if not found:
        raise BundleError(
            f"{path} holds no entry; name the root of a cache or the directory of one entry"
        )
    return found


def _read_manifest(path: Path) -> Manifest:
    with PrivateDirectory.open(path) as directory:
        manifest = read_manifest(directory, ANYONE)
    if isinstance(manifest, str):
        raise BundleError(f"{path} has the format {manifest}, which this release does not read")
    return manifest


def _error_of(refused: Refused) -> CacheError:
    is_corrupt = refused.kind == "corrupt"
    return CorruptEntryError(refused.reason) if is_corrupt else BundleError(refused.reason)


def _require_proof(path: Path, found: list[_Found], expected: str | None, unverified: bool) -> None:
    if expected is None:
        if not unverified:
            raise BundleError(
                f"{path} comes without proof of origin; give its digest as `serve-shim cache "
                f"verify` prints it where it was made (`--sha256 DIGEST`), or say that you trust "
                "it (`--yes-i-trust-it`)"
            )
    elif not hmac.compare_digest(
        digest_of(each.manifest for each in found).encode(), expected.strip().lower().encode()
    ):
        raise BundleError(f"{path} does not have the digest that was given; copy it anew")
