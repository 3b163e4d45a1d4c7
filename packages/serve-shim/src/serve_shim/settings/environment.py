"""Settings from environment variables, and the one list of the variables we know.

`SERVE_SHIM_A__B` sets `a.b`; everything after the prefix is the name in upper case, with `__`
between levels. An unknown `SERVE_SHIM_*` or `IR_*` is refused: it would otherwise do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serve_shim.settings.flatten import flatten_text
from serve_shim.settings.schema import Section, find, walk
from serve_shim.settings.source import Given, Kind, Path, Source, everywhere
from serve_shim.settings.wrong_setting import WrongSettingError, nearest, show, suggest

PREFIX = "SERVE_SHIM_"
CONFIG_FILE = f"{PREFIX}CONFIG"
"""Names a configuration file, as `--config` does."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A variable with a name of its own; `when_true` is the value that a true switch stands for."""

    variable: str
    path: str
    when_true: str | None = None


TWINS = (
    Twin("VLLM_LOGGING_LEVEL", "log_level"),
    Twin("IR_LOGGING_LEVEL", "log_level"),
    Twin("VLLM_BATCH_INVARIANT", "batch_invariant"),
    Twin("IR_BATCH_INVARIANT", "batch_invariant"),
    Twin("VLLM_DISABLE_COMPILE_CACHE", "compilation_config.cache_mode", when_true="off"),
    Twin("IR_DISABLE_COMPILE_CACHE", "compilation_config.cache_mode", when_true="off"),
    Twin("VLLM_COMPILE_CACHE_SAVE_FORMAT", "compilation_config.compile_cache_save_format"),
    Twin("IR_COMPILE_CACHE_SAVE_FORMAT", "compilation_config.compile_cache_save_format"),
)
"""Weakest first; all of them are weaker than `SERVE_SHIM_*`."""

READ_BY_IR_CORE = ("IR_CHECK_DONATIONS", "IR_LOGS", "IR_PLUGINS")
"""Known variables that are no settings of the server."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")
_KUBERNETES = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")


def from_environment(
    root: Section, environ: Mapping[str, str]
) -> Iterator[Given | WrongSettingError]:
    """The settings that `environ` gives, twins first, and every variable of ours that is wrong."""
    for twin in TWINS:
        if twin.variable in environ:
            yield from _read_twin(root, twin, environ[twin.variable])
    known = {twin.variable for twin in TWINS} | {CONFIG_FILE, *READ_BY_IR_CORE}
    for variable in sorted(environ):
        if variable in known:
            continue
        if variable.startswith(PREFIX):
            yield from _read_variable(root, variable, environ[variable])
        elif variable.startswith("IR_"):
            hint = suggest(variable, [name for name in known if name.startswith("IR_")])
            yield WrongSettingError(
                f"unknown variable.{hint} Unset it or correct its name.", _at(variable)
            )


def to_variable(path: Path) -> str:
    """The variable that sets the setting at a path."""
    return PREFIX + "__".join(path).upper()


def variable_names(root: Section) -> list[str]:
    """Every variable that sets one setting or a section, aliases included."""
    paths = [node.path for node in walk(root) if node.path]
    paths += [(name,) for name in root.aliases if name.islower()]
    return [to_variable(path) for path in paths]


def _read_twin(root: Section, twin: Twin, text: str) -> Iterator[Given | WrongSettingError]:
    if twin.when_true is not None:
        switch = text.strip().lower()
        if switch not in (*_TRUE, *_FALSE):
            yield WrongSettingError(f"wants 1 or 0, not {show(text)}", _at(twin.variable))
        if switch not in _TRUE:
            return
        text = twin.when_true
    node, path = find(root, twin.path.split("."))
    yield from flatten_text(root, node, path, text, everywhere(_at(twin.variable)))


def _read_variable(root: Section, variable: str, text: str) -> Iterator[Given | WrongSettingError]:
    source = _at(variable)
    name = variable.removeprefix(PREFIX)
    if _KUBERNETES.match(name) and (name != "PORT" or text.startswith("tcp://")):
        yield WrongSettingError(
            "Kubernetes sets this for a Service named serve-shim, and it is no setting of ours."
            " Rename the Service or set `enableServiceLinks: false` in the pod.",
            source,
        )
        return
    try:
        node, path = find(root, name.lower().split("__"), joiner="__")
    except WrongSettingError:
        known = [variable.removeprefix(PREFIX) for variable in variable_names(root)]
        hint = nearest(name, known, PREFIX) or " See --help for the names."
        yield WrongSettingError(f"unknown variable.{hint}", source)
        return
    yield from flatten_text(root, node, path, text, everywhere(source))


def _at(variable: str) -> Source:
    return Source(Kind.ENVIRONMENT, variable)
