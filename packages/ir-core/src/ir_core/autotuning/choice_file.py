"""Tuned choices on disk: a file for each kind of machine, which holds names and numbers, no code.

It refuses a file that another user could have written, that is damaged, or that was made elsewhere,
each with its reason; it never raises for what it reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir_core.autotuning.grounds import Grounds, difference, to_texts
from ir_core.autotuning.table import TunedChoice

FORMAT = 3
# A named pipe would block an open for ever without O_NONBLOCK.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES = 16 << 20
_MOST_OTHERS = 32
_MALFORMED = (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A choice, and what it rested on when it was made."""

    choice: TunedChoice
    grounds: Grounds


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file holds; `reason` says why it holds nothing."""

    choices: tuple[StoredChoice, ...]
    reason: str | None = None


class ChoiceFile:
    """The choices of one kind of machine below a directory, which other kinds may share."""

    def __init__(self, directory: Path, machine: Mapping[str, str]) -> None:
        self.machine = machine
        self.path = directory / f"v{FORMAT}" / f"{_digest(dict(machine))[:32]}.json"

    def load(self) -> Loaded:
        """Read and check the file."""
        try:
            value = _read(self.path)
            if value["machine"] != dict(self.machine):
                raise ValueError("it names another machine than its name does")
            grounds = {name: Grounds.from_json(each) for name, each in value["grounds"].items()}
            rows = [
                StoredChoice(TunedChoice.from_json(each["choice"]), grounds[each["grounds"]])
                for each in value["choices"]
            ]
        except FileNotFoundError:
            return Loaded((), f"nothing is stored for this machine{self._nearest()}")
        except _MALFORMED as error:
            return Loaded((), f"{self.path} is not used: {error}")
        return Loaded(tuple(rows))

    def save(self, choices: Sequence[StoredChoice]) -> None:
        """Write these beside those of other calls that the file holds; raises OSError.

        Of two processes that write at once one wins; what the other timed is timed again.
        """
        kept = {(each.choice.op, each.choice.signature): each for each in self.load().choices}
        kept |= {(each.choice.op, each.choice.signature): each for each in choices}
        # Choices for one op rest on the same.
        grounds: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        for _, each in sorted(kept.items()):
            ground = each.grounds.to_json()
            name = _digest(ground)
            grounds[name] = ground
            rows.append({"choice": each.choice.to_json(), "grounds": name})
        body = {
            "format": FORMAT,
            "machine": dict(self.machine),
            "choices": rows,
            "grounds": grounds,
        }
        text = json.dumps({**body, "digest": _digest(body)}, indent=1, ensure_ascii=False)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(self.path, text.encode())

    def _nearest(self) -> str:
        """How the most similar machine that left a file differs, if one did."""
        try:
            others = sorted(self.path.parent.glob("*.json"))[:_MOST_OTHERS]
        except OSError:
            return ""
        found: list[tuple[int, str]] = []
        for path in others:
            try:
                machine = to_texts(_read(path)["machine"])
            except _MALFORMED:
                continue
            distance = sum(machine.get(name) != text for name, text in self.machine.items())
            found.append((distance, f"; for another, {difference(self.machine, machine)}"))
        return min(found, default=(0, ""))[1]


def _read(path: Path) -> Any:
    descriptor = os.open(path, _FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("others could have written it; remove it, or make it yours alone")
        if status.st_size > _MOST_BYTES:
            raise ValueError("it is too large to be one")
        value: Any = json.loads(file.read(_MOST_BYTES))
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError("it has another format")
    digest = value.pop("digest", None)
    if digest != _digest(value):
        raise ValueError("it is damaged: its digest is another")
    return value


def _replace(path: Path, data: bytes) -> None:
    """Let a path hold these bytes, or what it held before; its owner alone can read it."""
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
