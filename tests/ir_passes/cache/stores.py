"""Stores and entries for tests: small, and each below a directory of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ir_passes.cache.entry import Entry, Refused
from ir_passes.cache.manifest import key_of
from ir_passes.cache.store import CacheStore

FACTORS = {"torch": "2.13", "settings": "a long text"}
KEY = key_of(FACTORS)
FILES = {"program.json": b"{}", "pieces/0/kernel.so": b"\x7fELF" + bytes(range(200))}


def store_at(path: Path, **options: Any) -> CacheStore:
    """A store below `path` with a key beside it."""
    return CacheStore(path / "root", key_file=path / "cache.key", **options)


def publish(store: CacheStore, content: bytes = b"{}") -> Entry:
    """Store one more entry under KEY, told from others by its content."""
    entry = store.publish(FACTORS, {**FILES, "program.json": content}, {"model": "toy"})
    assert entry is not None
    return entry


def found(store: CacheStore) -> list[Entry | Refused]:
    """Everything under KEY."""
    return list(store.candidates(KEY))


def refused(store: CacheStore) -> Refused:
    """The one thing under KEY, which must not be usable."""
    (only,) = found(store)
    assert isinstance(only, Refused), only
    return only


def quarantined(store: CacheStore) -> list[Path]:
    """What was set aside."""
    place = store.root / "quarantine"
    return sorted(place.iterdir()) if place.is_dir() else []


def files_below(path: Path) -> list[str]:
    """All files and empty directories below a path, as text."""
    every = sorted(path.rglob("*"))
    return [
        str(each.relative_to(path)) for each in every if each.is_file() or not any(each.iterdir())
    ]


def flip_bit(path: Path, index: int = -2) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(content)


def make_disk_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call that would write fail, as on a disk that is mounted for reading."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def open_to_read(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return opened(path, flags, *arguments, **options)

    opened = os.open
    for name in ("mkdir", "rename", "replace", "link", "unlink", "rmdir", "utime", "chmod"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(os, "open", open_to_read)
