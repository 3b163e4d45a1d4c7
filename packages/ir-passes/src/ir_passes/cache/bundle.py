"""Entries on their way between machines: exported to one file, taken in with proof of origin.

The proof is a digest that came another way, or a signature by a key that is trusted. It is checked
before anything in the file is looked at.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from ir_passes.cache.adoption import import_directory
from ir_passes.cache.bundle_archive import MAX_CONTENT_BYTES, ArchiveReader, ArchiveWriter
from ir_passes.cache.bundle_index import BundleIndex
from ir_passes.cache.entry import Entry
from ir_passes.cache.manifest import MAX_FILE_BYTES
from ir_passes.cache.publishing import staging
from ir_passes.cache.safe_files import PrivateDirectory, make_directories
from ir_passes.cache.signing import find_signer, sign
from ir_passes.cache.store import CacheStore
from ir_passes.errors import BundleError

__all__ = [
    "export_bundle",
    "import_bundle",
    "import_directory",
    "signature_path",
]

_ALGORITHM = "ed25519"
_CHUNK = 1 << 20
_MAX_SIGNATURE_FILE = 4096


def export_bundle(
    entries: Iterable[Entry],
    path: Path,
    *,
    signing_key: Path | None = None,
    expires: datetime | None = None,
) -> str:
    """Write entries to one file and return its digest; a signature lies beside it as `.sig`.

    Equal entries give equal files. Raises what `Entry.read` does for entries that are not sound,
    and `BundleError` for no entry, a bad key or a file that cannot be written.
    """
    chosen = sorted(entries, key=lambda entry: (entry.key, entry.id))
    if not chosen:
        raise BundleError(f"There is no entry to export to {path}.")
    until = expires.astimezone(UTC) if expires else None
    created = max(entry.created for entry in chosen)
    index = BundleIndex(created, until, tuple(entry.manifest for entry in chosen))
    try:
        with _new_file(path) as file:
            _write(file, index, chosen)
        sha256 = _digest_file(path)
        if signing_key is not None:
            signature = f"{_ALGORITHM} {sign(sha256, signing_key)}\n".encode()
            with _new_file(signature_path(path)) as file:
                file.write(signature)
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error.strerror}") from error
    return sha256


def import_bundle(
    store: CacheStore,
    path: Path,
    *,
    sha256: str | None = None,
    trusted_keys: Sequence[Path] = (),
    unverified: bool = False,
) -> list[Entry]:
    """Take in the entries of a bundle, all or none of them, and vouch for them with the user's key.

    Args:
        store: where to; nothing is written but temporary files until all is verified.
        path: the bundle.
        sha256: the digest that the file must have.
        trusted_keys: public keys; one of them must have signed the file, unless `sha256` is given.
        unverified: whether a file without proof of origin is taken in nevertheless.

    Raises:
        BundleError: it has no proof, the wrong one, has expired, is malformed or cannot be read.
        CacheError: the store cannot take it in.
    """
    store.require_writable()
    try:
        make_directories(store.root)
        with PrivateDirectory.open(store.root) as root, staging(root) as (_, draft):
            with draft.create("bundle") as file:
                found, num_bytes = _copy(path, file)
                _require_proof(path, found, sha256, trusted_keys, unverified)
                file.seek(0)
                index = _unpack(file, num_bytes, draft)
            return [
                store.adopt(
                    manifest.with_fact("imported_from", f"bundle {found}"),
                    {
                        name: draft.read(record.sha256, limit=MAX_FILE_BYTES, size=record.size)
                        for name, record in manifest.files.items()
                    },
                )
                for manifest in index.manifests
            ]
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    except OSError as error:
        where = error.filename or store.root
        raise BundleError(f"{path} cannot be imported: {where}: {error.strerror}") from error


def signature_path(path: Path) -> Path:
    """Where the signature of a bundle lies."""
    return path.with_name(f"{path.name}.sig")


def _write(file: BinaryIO, index: BundleIndex, entries: Sequence[Entry]) -> None:
    places = {
        record.sha256: (entry, name) for entry in entries for name, record in entry.files.items()
    }
    archive = ArchiveWriter(file, index)
    for sha256 in index.sizes:
        entry, name = places[sha256]
        archive.add(sha256, entry.read(name))
    archive.close()


@contextmanager
def _new_file(path: Path) -> Generator[BinaryIO]:
    """A file that has its name only when it is whole."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _copy(path: Path, target: BinaryIO) -> tuple[str, int]:
    """Copy a bundle to where nobody else changes it; its digest and size."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            num_bytes += len(chunk)
            if num_bytes > MAX_CONTENT_BYTES:
                raise BundleError(f"has more than {MAX_CONTENT_BYTES} bytes")
            digest.update(chunk)
            target.write(chunk)
    return digest.hexdigest(), num_bytes


def _require_proof(
    path: Path, found: str, expected: str | None, keys: Sequence[Path], unverified: bool
) -> None:
    if expected is not None:
        if not hmac.compare_digest(found.encode(), expected.strip().lower().encode()):
            raise BundleError("does not have the digest that was given; get it anew")
    elif keys:
        _require_signature(path, found, keys)
    elif not unverified:
        raise BundleError(
            "comes without proof of origin; give its digest as its maker printed it (`--sha256 "
            "DIGEST`), or a public key that signed it (`--trusted-key FILE`)"
        )


def _require_signature(path: Path, found: str, keys: Sequence[Path]) -> None:
    place = signature_path(path)
    try:
        with place.open("rb") as file:
            algorithm, _, signature = file.read(_MAX_SIGNATURE_FILE).decode().partition(" ")
    except FileNotFoundError as error:
        raise BundleError(
            f"is not signed: {place} is not there; bring it, or give the bundle's digest "
            "(`--sha256 DIGEST`)"
        ) from error
    except UnicodeDecodeError:
        algorithm, signature = "", ""
    if algorithm != _ALGORITHM or find_signer(found, signature.strip(), keys) is None:
        names = ", ".join(str(key) for key in keys)
        raise BundleError(
            f"is signed by none of the trusted keys ({names}); give the key of its maker "
            "(`--trusted-key FILE`), or the bundle's digest (`--sha256 DIGEST`)"
        )


def _unpack(file: BinaryIO, num_bytes: int, draft: PrivateDirectory) -> BundleIndex:
    archive = ArchiveReader(file, num_bytes)
    expires = archive.index.expires
    if expires is not None and expires <= datetime.now(UTC):
        raise BundleError(f"has expired on {expires.isoformat()}; get a newer one")
    for sha256, content in archive.files():
        draft.write(sha256, content)
    return archive.index


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
