"""Names of files in an entry: relative, with `/` between parts, and the same on every system."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from ir_passes.cache.layout import MANIFEST

_MAX_PART = 200
_MAX_PARTS = 8


def check_names(names: Collection[str]) -> None:
    """Raise ValueError, with the reason, for names that an entry cannot hold together."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for name in names:
        if reason := _problem(name):
            raise ValueError(f"the file name {name[:_MAX_PART]!r} {reason}")
        if name in folders:
            raise ValueError(f"the file name {name[:_MAX_PART]!r} is also that of a folder")


def _problem(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/"):
        return "is absolute"
    if len(parts) > _MAX_PARTS:
        return f"has more than {_MAX_PARTS} parts"
    if parts[0] == MANIFEST:
        return "is that of the manifest"
    return next((reason for reason in map(_problem_of_part, parts) if reason), "")


def _problem_of_part(part: str) -> str:
    if part in ("", ".", ".."):
        return f"has the part {part!r}"
    if "\\" in part or not (part.isprintable() and _is_encodable(part)):
        return "has a character that file names should not have"
    return f"has a part of more than {_MAX_PART} bytes" if len(part.encode()) > _MAX_PART else ""


def _is_encodable(part: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in part)
