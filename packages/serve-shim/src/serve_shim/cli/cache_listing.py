"""The commands that look at the compile cache: `ls` and `verify`. They change nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ir_passes.cache.bundle_index import digest_of
from ir_passes.cache.entry import Entry, Refused
from ir_passes.errors import CacheError, UnreadableEntryError
from ir_passes.table import align
from serve_shim.cli.cache_store import Place, open_store, select

_HERE = Place()
_BAD = ("untrusted", "corrupt", "unreadable")
_STATES = {"format": "other format"}
_COLUMNS = ("key", "id", "model", "backend", "torch", "created", "last_used", "size", "state")
_SHOWN_DIGITS = 12

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]


def list_entries(place: Place = _HERE, *, as_json: Json = False) -> int:
    """Show what is in the compile cache, and what of it cannot be used and why."""
    store = open_store(place)
    rows = [_facts(each) for each in store.entries()]
    if as_json:
        print(json.dumps({"root": str(store.root), "entries": rows}, indent=2))
        return 0
    if not rows:
        print(f"The compile cache {store.root} is empty.")
        return 0
    titles = tuple(name.replace("_", " ") for name in _COLUMNS)
    cells = [tuple(_cell(name, row[name]) for name in _COLUMNS) for row in rows]
    print("\n".join(align([titles, *cells])))
    for row in rows:
        if row["reason"]:
            print(row["reason"])
    return 0


def verify(*names: str, place: Place = _HERE, as_json: Json = False) -> int:
    """Read and check every file of the compile cache, or of some entries; 1 if one is bad.

    Parameters
    ----------
    names
        Beginnings of keys or ids; everything by default.
    """
    store = open_store(place)
    found = select(store, names)
    rows = [_checked(each) for each in found]
    is_sound = not any(row["state"] in _BAD for row in rows)
    digest = _digest(found, has_all=not names) if is_sound else None
    if as_json:
        print(json.dumps({"root": str(store.root), "entries": rows, "sha256": digest}, indent=2))
        return 0 if is_sound else 1
    for row in rows:
        text = f"{row['state']}: {row['directory']}"
        print(f"{text}\n  {row['reason']}" if row["reason"] else text)
    print(f"{len(rows)} checked in {store.root}.")
    if digest:
        print(f"For `serve-shim cache import DIRECTORY` elsewhere: --sha256 {digest}")
    return 0 if is_sound else 1


def _facts(found: Entry | Refused) -> dict[str, Any]:
    if isinstance(found, Refused):
        return {
            **dict.fromkeys(_COLUMNS),
            "key": found.key,
            "id": found.directory.name,
            "state": _STATES.get(found.kind, found.kind),
            "directory": str(found.directory),
            "reason": found.reason,
        }
    return {
        "key": found.key,
        "id": found.id,
        "model": found.facts.get("model"),
        "backend": found.facts.get("backend"),
        "torch": found.facts.get("torch"),
        "created": found.created.isoformat(timespec="seconds"),
        "last_used": _last_used(found.directory),
        "size": found.num_bytes,
        "state": "ok",
        "directory": str(found.directory),
        "reason": "",
    }


def _checked(found: Entry | Refused) -> dict[str, Any]:
    row = _facts(found)
    if isinstance(found, Entry):
        try:
            found.read_all()
        except CacheError as error:
            state = "unreadable" if isinstance(error, UnreadableEntryError) else "corrupt"
            row |= {"state": state, "reason": str(error)}
    return row


def _digest(found: list[Entry | Refused], *, has_all: bool) -> str | None:
    """What an import of this directory asks for: of the whole cache, or of one entry."""
    manifests = [each.manifest for each in found if isinstance(each, Entry)]
    is_directory = len(manifests) == 1 or (has_all and manifests)
    return digest_of(manifests) if is_directory else None


def _last_used(directory: Path) -> str | None:
    try:
        moment = directory.stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def _cell(name: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if name in ("key", "id"):
        return str(value)[:_SHOWN_DIGITS]
    if name == "size" and isinstance(value, int):
        return f"{value / (1 << 20):.1f} MiB"
    return str(value).removesuffix("+00:00")
