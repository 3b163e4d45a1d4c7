"""What is wrong with one setting, and the bounded message for all that are wrong.

Values are cut short, secrets are never shown, and at most ten problems are listed.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence

from serve_shim.errors import SettingsError
from serve_shim.settings.source import Path, Source

MAX_PROBLEMS = 10
MAX_MESSAGE = 1200


class WrongSettingError(SettingsError):
    """One wrong value or name; `path` is empty where no setting could be identified."""

    def __init__(self, message: str, source: Source | None = None, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.path = path

    def __str__(self) -> str:
        where = f"{shorten(str(self.source), 200)}: " if self.source else ""
        return where + shorten(self.message)


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text`, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(value: object) -> str:
    """A value for a message: its repr, cut to 60 characters."""
    return shorten(reprlib.repr(value) if not isinstance(value, str) else repr(value[:80]), 60)


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """` Did you mean …?` for the nearest known names, shown behind `prefix`, or nothing."""
    near = difflib.get_close_matches(name[:80], sorted(set(known)), n=2, cutoff=0.6)
    return " Did you mean " + " or ".join(f"`{prefix}{n}`" for n in near) + "?" if near else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known names as a question, else a list of a few of them."""
    names = sorted(set(known))
    if not names:
        return ""
    listed = ", ".join(f"`{n}`" for n in names[:12])
    return nearest(name, names) or f" Known: {listed}{', …' if len(names) > 12 else ''}."


def raise_problems(problems: Sequence[WrongSettingError]) -> None:
    """Raise one SettingsError for all problems; nothing where there is none."""
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    lines = [f"  - {p}" for p in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"  … and {len(problems) - MAX_PROBLEMS} more")
    raise SettingsError(f"{len(problems)} settings are wrong:\n" + "\n".join(lines))
