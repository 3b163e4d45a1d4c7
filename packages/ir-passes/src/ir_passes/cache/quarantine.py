"""Corrupt entries are evidence: they are set aside with the reason, not removed."""

from __future__ import annotations

import logging
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path

from ir_passes.cache.entry import Entry, inspect_entry
from ir_passes.cache.layout import QUARANTINE
from ir_passes.cache.safe_files import PrivateDirectory
from ir_passes.cache.trust import ANYONE
from ir_passes.errors import UntrustedEntryError

_log = logging.getLogger(__name__)
_CONTENT = "entry"
_REASON = "reason.txt"


def set_aside(
    root: PrivateDirectory,
    parent: PrivateDirectory,
    name: str,
    reason: str,
    seen: Entry | None = None,
) -> None:
    """Move what lies in `parent` to the quarantine; one warning, also if that fails.

    Where it was an entry when it was `seen`, one that was published there since stays.
    """
    path = parent.path / name
    try:
        place = _move(root, parent, name, reason, seen)
    except FileNotFoundError:
        return  # another process was first, or has published anew
    except (OSError, UntrustedEntryError) as error:
        _log.warning(
            "The compile cache does not use %s: %s; it stays there: %s", path, reason, error
        )
    else:
        _log.warning("The compile cache does not use an entry: %s; it is now %s", reason, place)


def _move(
    root: PrivateDirectory, parent: PrivateDirectory, name: str, reason: str, seen: Entry | None
) -> Path:
    now = datetime.now(UTC)
    title = f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex}"
    with root.make(QUARANTINE) as quarantine, quarantine.make(title) as place:
        try:
            if seen is not None:
                _require_same(parent, name, seen)
            os.rename(name, _CONTENT, src_dir_fd=parent.descriptor, dst_dir_fd=place.descriptor)
        except OSError:
            os.rmdir(title, dir_fd=quarantine.descriptor)
            raise
        parent.sync()
        text = f"{parent.path / name}\n{now.isoformat(timespec='seconds')}\n{reason}\n"
        place.write(_REASON, text.encode(errors="replace"))
        return place.path


def _require_same(parent: PrivateDirectory, name: str, seen: Entry) -> None:
    found = inspect_entry(parent, seen.key, name, ANYONE)
    if found is None or (isinstance(found, Entry) and found.created != seen.created):
        raise FileNotFoundError(f"{seen.directory} is not the entry any more that was looked at")
