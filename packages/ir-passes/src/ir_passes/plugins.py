"""Passes of other distributions: entry points in the group `ir_passes.passes`, in fixed order.

An entry point names a function without arguments that returns one `Addition` or several. A broken
or doubly declared one is an error: nothing is left out without a word.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ir_core import PluginError
from ir_core.plugins import ALLOW_LIST
from ir_passes.base import Pass

GROUP = "ir_passes.passes"

_logger = logging.getLogger("ir_passes.plugins")


@dataclass(frozen=True, slots=True)
class Addition:
    """A pass and its place in the pipeline: before or after another pass, at the end by default.

    Attributes:
        step: the pass.
        before: the pass that it must come before.
        after: the pass that it must come after.
        is_enabled: whether it runs unasked; else only where `PassConfig` names it.
        origin: the distribution that it comes from; filled in when it is loaded.
    """

    step: Pass
    before: str | None = None
    after: str | None = None
    is_enabled: bool = True
    origin: str = ""


def load_additions(environ: Mapping[str, str] = os.environ) -> tuple[Addition, ...]:
    """Load every allowed plug-in's passes, ordered by distribution and name.

    Raises:
        PluginError: names the entry point, its distribution and what went wrong.
    """
    additions: list[Addition] = []
    origins: dict[str, EntryPoint] = {}
    for entry in allowed_entries(environ):
        for addition in _run(entry):
            name = addition.step.name
            other = origins.setdefault(name, entry)
            if other is not entry or name in [each.step.name for each in additions]:
                raise PluginError(
                    f"Pass `{name}` is added by {_describe(other)} and by {_describe(entry)}; "
                    f"uninstall one, or name the distributions to load in {ALLOW_LIST}."
                )
            additions.append(addition)
        _logger.info("Loaded passes of %s", _describe(entry))
    return tuple(additions)


def allowed_entries(environ: Mapping[str, str] = os.environ) -> list[EntryPoint]:
    """The entry points that are loaded, ordered by distribution and name."""
    found = sorted(entry_points(group=GROUP), key=_order)
    return _allowed(found, environ.get(ALLOW_LIST))


def _run(entry: EntryPoint) -> Iterable[Addition]:
    origin = _distribution(entry)
    try:
        function = entry.load()
        if not callable(function):
            raise TypeError(f"it names {function!r}, not a function")
        return [_addition(each, origin) for each in _as_sequence(function())]
    except Exception as error:
        raise PluginError(
            f"Plug-in {_describe(entry)} failed: {type(error).__name__}: {error}. Repair or "
            f"uninstall `{origin}`, or name the plug-ins to load in {ALLOW_LIST}."
        ) from error


def _as_sequence(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _addition(value: Any, origin: str) -> Addition:
    if not isinstance(value, Addition):
        raise TypeError(f"it returned {value!r}, not an `ir_passes.plugins.Addition`")
    step: Any = value.step
    if not isinstance(step, Pass):
        raise TypeError(f"it adds {step!r}, which is no `ir_passes.Pass`")
    return Addition(value.step, value.before, value.after, value.is_enabled, origin)


def _allowed(found: Sequence[EntryPoint], allow_list: str | None) -> list[EntryPoint]:
    """Those that the list names; a name unknown here may be a plug-in of another group."""
    if allow_list is None or not allow_list.strip():
        return list(found)
    names = {_canonical(each) for each in allow_list.split(",")}
    return [
        each for each in found if names & {_canonical(_distribution(each)), _canonical(each.name)}
    ]


def _order(entry: EntryPoint) -> tuple[str, str]:
    return _canonical(_distribution(entry)), entry.name


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _describe(entry: EntryPoint) -> str:
    return f"`{entry.name}` of `{_distribution(entry)}` ({entry.group}: {entry.value})"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
