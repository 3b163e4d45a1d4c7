"""The command that makes room in the compile cache: `gc`."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter
from pydantic import ByteSize, TypeAdapter, ValidationError

from serve_shim.cli.cache_listing import Json
from serve_shim.cli.cache_store import Place, as_cache_error, open_store
from serve_shim.errors import SettingsError

_HERE = Place()
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")


def collect(
    *,
    max_size: str | None = None,
    older_than: str | None = None,
    all_formats: Annotated[bool, Parameter(negative="")] = False,
    place: Place = _HERE,
    as_json: Json = False,
) -> int:
    """Remove what is abandoned, long unused or too much; never what a server uses.

    Parameters
    ----------
    max_size
        Size to shrink the cache to, such as 2GiB; what was used least goes first. By default
        `cache_max_size`.
    older_than
        Remove what was not used for so long, such as 30d or 12h.
    all_formats
        Remove the entries of releases with another format too.
    """
    limit = None if max_size is None else _to_bytes(max_size)
    age = None if older_than is None else _to_duration(older_than)
    store = open_store(place, writable=True)
    with as_cache_error():
        removed = store.collect(max_bytes=limit, older_than=age, other_formats=all_formats)
    total = sum(each.num_bytes for each in removed)
    if as_json:
        rows = [
            {"path": str(each.path), "bytes": each.num_bytes, "reason": each.reason}
            for each in removed
        ]
        print(json.dumps({"root": str(store.root), "removed": rows, "bytes": total}, indent=2))
        return 0
    for each in removed:
        print(f"{each.path}: {each.reason}")
    print(f"Removed {len(removed)}, {total / (1 << 20):.1f} MiB, from {store.root}.")
    return 0


def _to_bytes(text: str) -> int:
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = -1
    if size < 0:
        raise SettingsError(f"`--max-size`: wants a size such as 2GiB, not `{text:.40}`")
    return size


def _to_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise SettingsError(f"`--older-than`: wants a time such as 30d or 12h, not `{text:.40}`")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
