"""The globals that functions name, and those of the functions among them, as factors.

A module's file says what a global is where the module makes it from constants; not where it comes
from the environment, or is set later. Followed are functions and modules of the same package, or
beside it where there is none: what is elsewhere has its version, or its file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ir_core.source_closure import UnreadableSourceError
from ir_core.stable_text import StableText


class NamedGlobals:
    """Walks from function to function, those of torch aside.

    Args:
        functions: where to start; what is of their packages is followed.

    Attributes:
        factors: the text of each global, "global MODULE.NAME"; of the type only where the value
            has no text, for then nothing is told by it.
        modules: those of the same package that the functions and classes among them are from.
    """

    def __init__(self, functions: Sequence[FunctionType]) -> None:
        self.factors: dict[str, str] = {}
        self.modules: set[str] = set()
        self._homes = {_place(_module_of(each)) for each in functions} - {"torch", None}
        self._texts = StableText(self._function_text, self._module_text)
        # A queue, since functions may name each other to any depth.
        self._pending = [each for each in functions if self._is_home(_module_of(each))]
        started, followed = set(functions), set[FunctionType]()
        while self._pending:
            function = self._pending.pop()
            if function not in followed:
                followed.add(function)
                self._follow(function)
                if function not in started:
                    self._add_surroundings(function)

    def _follow(self, function: FunctionType) -> None:
        names = set(_names(function.__code__))
        self._enter_all(_module_of(function), names, function.__globals__)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType) and self._is_home(value.__name__):
                self._enter_all(value.__name__, names, vars(value))

    def _add_surroundings(self, function: FunctionType) -> None:
        for variable, value in _surroundings(function):
            self._enter(f"{_module_of(function)}.{function.__qualname__}.{variable}", value)

    def _enter_all(self, module: str, names: set[str], scope: Mapping[str, Any]) -> None:
        # Those in double underscores are the interpreter's, and hold paths.
        for name in sorted(names & scope.keys()):
            if not name.startswith("__") and f"global {module}.{name}" not in self.factors:
                self._enter(f"{module}.{name}", scope[name])

    def _enter(self, name: str, value: Any) -> None:
        try:
            text = self._texts.of(name, value)
        except UnreadableSourceError:
            text = self._opaque_text(value)
        self.factors[unused(self.factors, f"global {name}")] = text

    def _opaque_text(self, value: Any) -> str:
        kind = type(value)
        wrapped = getattr(value, "__dict__", {}).get("__wrapped__")
        inner = self._function_text(wrapped) if isinstance(wrapped, FunctionType) else ""
        return f"{kind.__module__}.{kind.__qualname__} {inner}".rstrip()

    def _function_text(self, function: FunctionType) -> str:
        module = _module_of(function)
        if self._is_home(module):
            self._add_module(module)
            self._pending.append(function)
        return f"function {module}.{function.__qualname__}"

    def _module_text(self, value: type | ModuleType) -> str:
        module = value.__name__ if isinstance(value, ModuleType) else value.__module__
        if self._is_home(module):
            self._add_module(module)
        return f"{module}.{getattr(value, '__qualname__', '')}"

    def _add_module(self, name: str) -> None:
        if getattr(sys.modules.get(name), "__file__", None) is not None:
            self.modules.add(name)

    def _is_home(self, module: str) -> bool:
        return _place(module) in self._homes


def unused(factors: Mapping[str, str], name: str) -> str:
    """A name for a factor that is not taken: functions that one function makes share their name."""
    number = 1
    free = name
    while free in factors:
        number += 1
        free = f"{name} ({number})"
    return free


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _surroundings(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for variable, cell in cells:
        try:
            yield variable, cell.cell_contents
        except ValueError:
            continue
    for kind in ("__defaults__", "__kwdefaults__"):
        if getattr(function, kind):
            yield kind, getattr(function, kind)


def _module_of(function: FunctionType) -> str:
    """Where its globals are; a decorator may have given it another module's name."""
    return str(function.__globals__.get("__name__", ""))


def _place(module: str) -> str | None:
    """The top-level package that a module is in, or the directory of one that is in none."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is None or top in sys.stdlib_module_names:
        return None
    if hasattr(loaded, "__path__"):
        return top
    file = getattr(loaded, "__file__", None)
    return None if file is None else str(Path(file).parent)
