"""What is in a cache, looked at from its root down: by key, or all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ir_passes.cache.entry import Entry, Refused, inspect_entry
from ir_passes.cache.layout import ENTRIES, is_digest, is_format_directory
from ir_passes.cache.safe_files import open_below
from ir_passes.cache.trust import Trust
from ir_passes.errors import UntrustedEntryError


def find_entries(root: Path, key: str, trust: Trust) -> list[Entry | Refused]:
    """What is stored under a key: entries, the newest first, then what cannot be used.

    Raises ValueError for what is no key.
    """
    refuse_no_key(key)
    try:
        with ExitStack() as opened:
            _, home = open_below(root, (ENTRIES, key[:2], key), opened)
            names = filter(is_digest, home.names())
            found = [inspect_entry(home, key, name, trust) for name in names]
    except UntrustedEntryError as error:
        return [Refused(root, key, "untrusted", str(error))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return [Refused(root, key, "unreadable", f"{root} cannot be read: {error.strerror}")]
    entries = [each for each in found if isinstance(each, Entry)]
    entries.sort(key=lambda entry: (entry.created, entry.id), reverse=True)
    return [*entries, *(each for each in found if isinstance(each, Refused))]


def list_keys(root: Path) -> Iterator[str | Refused]:
    """All keys, and the directories of keys that are not looked at."""
    for shard in _names(root, ENTRIES):
        if isinstance(shard, Refused):
            yield shard
        else:
            names = _names(root, ENTRIES, shard)
            yield from (each for each in names if isinstance(each, Refused) or is_digest(each))


def list_other_formats(root: Path) -> Iterator[Refused]:
    """The directories of entries that other releases wrote."""
    for name in _names(root):
        if isinstance(name, str) and is_format_directory(name) and name != ENTRIES:
            reason = f"{root / name} was written by a release with another format"
            yield Refused(root / name, "", "format", reason)


def refuse_no_key(key: str) -> None:
    """Raise ValueError for what is no key."""
    if not is_digest(key):
        raise ValueError(f"{key!r:.80} is no key of the compile cache")


def _names(root: Path, *parts: str) -> Sequence[str | Refused]:
    """What is in a directory; nothing for one that is not there, or why it is not looked at."""
    try:
        with ExitStack() as opened:
            _, directory = open_below(root, parts, opened)
            return directory.names()
    except UntrustedEntryError as error:
        return [Refused(root.joinpath(*parts), "", "untrusted", str(error))]
    except OSError:
        return []
