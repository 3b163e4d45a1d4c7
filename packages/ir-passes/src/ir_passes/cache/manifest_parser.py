"""From the bytes of a manifest to its data; believes nothing that it has not checked.

`CorruptEntryError` says what is wrong; who calls knows where.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from ir_passes.cache.file_names import check_names
from ir_passes.cache.layout import FORMAT, is_digest
from ir_passes.cache.manifest import (
    MAX_ENTRY_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    FileRecord,
    Manifest,
    canonical,
)
from ir_passes.errors import CorruptEntryError

_FIELDS = {"format", "key", "factors", "facts", "created", "files"}


def parse_document(content: bytes) -> dict[str, Any]:
    """The JSON object that the bytes spell canonically."""
    try:
        document = json.loads(content)
        spelling = canonical(document)
    except (ValueError, RecursionError) as error:
        raise CorruptEntryError(f"the manifest is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptEntryError("the manifest is no JSON object")
    # Two spellings of one document would let a part go unseen: a repeated name, for one.
    if spelling != content:
        raise CorruptEntryError("the manifest is not spelled as it was written")
    return document


def parse_manifest(document: dict[str, Any]) -> Manifest:
    """The manifest of a document of this format, without what vouches for it.

    Its names, sizes and digests are possible ones, and its factors give its key.
    """
    if set(document) != _FIELDS or document["format"] != FORMAT:
        raise CorruptEntryError(f"the manifest has the fields {', '.join(sorted(document))!r:.200}")
    manifest = Manifest(
        factors=_texts(document, "factors"),
        facts=_texts(document, "facts"),
        created=_time(document["created"]),
        files=_files(document["files"]),
    )
    if document["key"] != manifest.key:
        raise CorruptEntryError("the manifest's factors do not give its key")
    return manifest


def parse_time(value: object) -> datetime | None:
    """A time in UTC as manifests spell it; None for anything else."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    is_utc = time is not None and time.utcoffset() == timedelta(0)
    return time.astimezone(UTC) if time is not None and is_utc else None


def _texts(document: dict[str, Any], field: str) -> dict[str, str]:
    value = document[field]
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CorruptEntryError(f"the manifest's {field} are no texts by name")
    return value


def _time(value: object) -> datetime:
    time = parse_time(value)
    if time is None:
        raise CorruptEntryError(f"the manifest's time is {value!r:.40}, not one in UTC")
    return time


def _files(value: object) -> dict[str, FileRecord]:
    if not isinstance(value, dict) or len(value) > MAX_FILES:
        raise CorruptEntryError(f"the manifest's files are no list of at most {MAX_FILES}")
    try:
        check_names(value)
    except ValueError as error:
        raise CorruptEntryError(f"in the manifest {error}") from error
    files = {name: _record(name, record) for name, record in value.items()}
    if sum(record.size for record in files.values()) > MAX_ENTRY_BYTES:
        raise CorruptEntryError(f"the manifest's files have more than {MAX_ENTRY_BYTES} bytes")
    return files


def _record(name: str, value: object) -> FileRecord:
    fields = value if isinstance(value, dict) else {}
    size, sha256 = fields.get("size"), fields.get("sha256")
    if set(fields) != {"size", "sha256"} or type(size) is not int:
        raise CorruptEntryError(f"the manifest's record of `{name}` has not its fields")
    if not 0 <= size <= MAX_FILE_BYTES:
        raise CorruptEntryError(f"the manifest's record of `{name}` has no possible size")
    if not (isinstance(sha256, str) and is_digest(sha256)):
        raise CorruptEntryError(f"the manifest's record of `{name}` has no sha256")
    return FileRecord(size, sha256)
