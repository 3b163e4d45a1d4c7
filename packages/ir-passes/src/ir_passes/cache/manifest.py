"""What an entry holds and is about: the data of its manifest, its key and its id.

A manifest is canonical JSON, so that one content has one spelling and one digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from ir_passes.cache.file_names import check_names
from ir_passes.cache.layout import FORMAT

Factors = Mapping[str, str]
"""Everything that decides the compiled result and is known before a trace: name -> value."""

MAX_MANIFEST_BYTES: Final = 4 << 20
MAX_FILES: Final = 4096
MAX_FILE_BYTES: Final = 1 << 30
MAX_ENTRY_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file of an entry must be: its size in bytes and its digest."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an entry: `factors` give its key, `files` its id, `facts` are for people."""

    factors: Factors
    facts: Mapping[str, str]
    created: datetime
    files: Mapping[str, FileRecord]

    @classmethod
    def of(cls, factors: Factors, facts: Mapping[str, str], files: Mapping[str, bytes]) -> Self:
        """Describe files as made now; ValueError for names that no entry can hold."""
        check_names(files)
        records = {
            name: FileRecord(len(content), hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        }
        return cls(dict(factors), dict(facts), datetime.now(UTC), records)

    @property
    def key(self) -> str:
        """What finds the entry."""
        return key_of(self.factors)

    @property
    def id(self) -> str:
        """What tells the entry from others under its key."""
        listing = {name: record.sha256 for name, record in self.files.items()}
        return hashlib.sha256(canonical(listing)).hexdigest()

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(record.size for record in self.files.values())

    def with_fact(self, name: str, value: str) -> Manifest:
        """The same with one more fact."""
        return replace(self, facts={**self.facts, name: value})

    def to_document(self) -> dict[str, Any]:
        """As JSON's types, without what vouches for it."""
        return {
            "format": FORMAT,
            "key": self.key,
            "factors": dict(self.factors),
            "facts": dict(self.facts),
            "created": self.created.isoformat(timespec="microseconds"),
            "files": {
                name: {"size": record.size, "sha256": record.sha256}
                for name, record in self.files.items()
            },
        }


def key_of(factors: Factors) -> str:
    """The key under which a result of these factors is found; TypeError unless all are text."""
    for name, value in factors.items():
        if not (isinstance(name, str) and isinstance(value, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"factor {name!r} has the value {value!r}; both must be text")
    return hashlib.sha256(canonical(dict(factors))).hexdigest()


def canonical(document: object) -> bytes:
    """The one spelling of a JSON document; ValueError for a NaN or an infinity."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()
