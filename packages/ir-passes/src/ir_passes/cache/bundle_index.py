"""What a bundle says about itself, before its files: its age and the manifests of its entries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ir_passes.cache.layout import FORMAT
from ir_passes.cache.manifest import MAX_MANIFEST_BYTES, Manifest, canonical
from ir_passes.cache.manifest_parser import parse_document, parse_manifest, parse_time
from ir_passes.errors import BundleError, CorruptEntryError

BUNDLE_FORMAT: Final = 1
MAX_ENTRIES: Final = 4096
MAX_INDEX_BYTES: Final = 16 * MAX_MANIFEST_BYTES

_FIELDS = {"bundle", "created", "expires", "entries"}


@dataclass(frozen=True, slots=True)
class BundleIndex:
    """The entries of a bundle, by key and id; after `expires`, if given, nobody takes them in."""

    created: datetime
    expires: datetime | None
    manifests: tuple[Manifest, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The digests of all files, sorted, with their sizes; equal files are one."""
        records = (record for each in self.manifests for record in each.files.values())
        return dict(sorted((record.sha256, record.size) for record in records))

    def to_bytes(self) -> bytes:
        """As canonical JSON."""
        return canonical(
            {
                "bundle": BUNDLE_FORMAT,
                "created": self.created.isoformat(),
                "expires": self.expires.isoformat() if self.expires else None,
                "entries": [each.to_document() for each in self.manifests],
            }
        )


def parse_index(content: bytes) -> BundleIndex:
    """The index that the bytes spell; `BundleError` says what is wrong, the caller where."""
    try:
        document = parse_document(content)
        if document.get("bundle") != BUNDLE_FORMAT:
            raise BundleError(
                f"has the format {document.get('bundle')!r:.40}; this release reads {BUNDLE_FORMAT}"
            )
        return _to_index(document)
    except CorruptEntryError as error:
        raise BundleError(f"has a broken index: {error}") from error


def digest_of(manifests: Iterable[Manifest]) -> str:
    """One digest for entries with all that they say of themselves, in any order."""
    documents = sorted(canonical(each.to_document()) for each in manifests)
    return hashlib.sha256(b"\n".join(documents)).hexdigest()


def _to_index(document: dict[str, Any]) -> BundleIndex:
    created, expires = parse_time(document.get("created")), parse_time(document.get("expires"))
    entries = document.get("entries")
    if set(document) != _FIELDS or created is None or not isinstance(entries, list):
        raise BundleError("has an index without its fields")
    if expires is None and document["expires"] is not None:
        raise BundleError("has no time of expiry that can be read")
    if len(entries) > MAX_ENTRIES:
        raise BundleError(f"has {len(entries)} entries, over {MAX_ENTRIES}")
    manifests = tuple(_to_manifest(each) for each in entries)
    if len({(each.key, each.id) for each in manifests}) != len(manifests):
        raise BundleError("has an entry twice")
    return BundleIndex(created, expires, manifests)


def _to_manifest(document: object) -> Manifest:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BundleError(f"has an entry whose format is not {FORMAT}")
    return parse_manifest(document)
