"""Entry-point plug-ins: other distributions' ops, implementations and platforms, in fixed order.

An entry point names a function without arguments that registers things, or for a platform returns
one or None. A broken or doubly declared one is an error: nothing is left out without a word.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ir_core.errors import PluginError
from ir_core.platforms import Platform
from ir_core.suggestion import suggest

OPS = "ir_core.ops"
IMPLEMENTATIONS = "ir_core.implementations"
PLATFORMS = "ir_core.platforms"
GROUPS = (OPS, IMPLEMENTATIONS, PLATFORMS)
ALLOW_LIST = "IR_PLUGINS"

_logger = logging.getLogger("ir_core.plugins")


class PluginLoader:
    """Loads every allowed plug-in once; a failure stays and is raised on each later use.

    What is no failure of a plug-in, such as a keyboard interrupt, passes through, and the next use
    begins anew; a registration that is repeated takes its own place.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.RLock()
        self._is_started = False
        self._error: PluginError | None = None
        self._platform: tuple[EntryPoint, Platform] | None = None
        self.is_done = False
        self.distribution: str | None = None
        """Name of the distribution whose plug-in is running now."""

    @property
    def platform(self) -> Platform | None:
        """The platform that a plug-in recognised; None without one."""
        return self._platform[1] if self._platform else None

    def load(self) -> None:
        """Load all plug-ins unless that is done; a plug-in that gets here again goes on at once.

        Raises:
            PluginError: names the entry point, its distribution and what went wrong.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_started:
                return
            self._is_started = True
            try:
                self._load_all()
            except PluginError as error:
                self._error = error
                raise
            except Exception as error:
                self._error = PluginError(
                    f"Entry points cannot be read: {type(error).__name__}: {error}. Look for an "
                    "installed distribution whose metadata is damaged, and reinstall it."
                )
                raise self._error from error
            except BaseException:
                self._is_started = False
                raise
            self.is_done = True

    def _load_all(self) -> None:
        self._platform = None
        found = [each for group in GROUPS for each in _sorted(entry_points(group=group))]
        allowed = _allowed(found, self._environ.get(ALLOW_LIST))
        _refuse_duplicates(allowed)
        for entry in allowed:
            self._load(entry)

    def _load(self, entry: EntryPoint) -> None:
        self.distribution = _distribution(entry)
        try:
            result = _run(entry)
        finally:
            self.distribution = None
        if entry.group == PLATFORMS and result is not None:
            self._set_platform(entry, result)
        _logger.info("Loaded plug-in %s", _describe(entry))

    def _set_platform(self, entry: EntryPoint, platform: Any) -> None:
        if not isinstance(platform, Platform):
            raise PluginError(
                f"Plug-in {_describe(entry)} returned {platform!r}; a platform plug-in returns an "
                "`ir_core.Platform`, or None where it does not apply."
            )
        if self._platform is not None:
            raise PluginError(
                f"Plug-ins {_describe(self._platform[0])} and {_describe(entry)} both claim this "
                f"machine; choose one with {ALLOW_LIST}."
            )
        self._platform = (entry, platform)


def _run(entry: EntryPoint) -> Any:
    try:
        function = entry.load()
        if not callable(function):
            raise TypeError(f"it names {function!r}, not a function")
        return function()
    except Exception as error:
        raise PluginError(
            f"Plug-in {_describe(entry)} failed: {type(error).__name__}: {error}. Repair or "
            f"uninstall `{_distribution(entry)}`, or name the plug-ins to load in {ALLOW_LIST}."
        ) from error


def _sorted(entries: Sequence[EntryPoint] | Any) -> list[EntryPoint]:
    return sorted(entries, key=lambda each: (_canonical(_distribution(each)), each.name))


def _allowed(found: Sequence[EntryPoint], allow_list: str | None) -> list[EntryPoint]:
    if allow_list is None or not allow_list.strip():
        return list(found)
    names = {_canonical(each) for each in allow_list.split(",")}
    if names == {"none"}:
        return []
    known = {_canonical(each): each for entry in found for each in _names(entry)}
    for name in sorted(names - set(known)):
        raise PluginError(f"{ALLOW_LIST} names `{name}`; {suggest(name, known.values())}")
    return [each for each in found if names & {_canonical(name) for name in _names(each)}]


def _refuse_duplicates(entries: Sequence[EntryPoint]) -> None:
    seen: dict[tuple[str, str], EntryPoint] = {}
    for entry in entries:
        other = seen.setdefault((entry.group, entry.name), entry)
        if other is not entry:
            raise PluginError(
                f"Plug-in name `{entry.name}` in `{entry.group}` is declared by "
                f"`{_distribution(other)}` and by `{_distribution(entry)}`; uninstall one, or name "
                f"the distributions to load in {ALLOW_LIST}."
            )


def _names(entry: EntryPoint) -> tuple[str, str]:
    return _distribution(entry), entry.name


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _describe(entry: EntryPoint) -> str:
    return f"`{entry.name}` of `{_distribution(entry)}` ({entry.group}: {entry.value})"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
