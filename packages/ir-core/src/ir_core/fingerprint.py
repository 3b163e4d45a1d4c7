"""Fingerprints: one digest of everything an implementation's result depends on.

Hashed: the files of the modules that its module imports, transitively, inside its distribution;
the values its function closes over and the globals it names; compiled libraries in its package and
those it names; the versions of the other distributions it imports, and Python's. What has no file
has no digest, and the reason is given.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ir_core.implementation import NATIVE, Implementation
from ir_core.named_globals import NamedGlobals, unused
from ir_core.source_closure import SourceClosure, UnreadableSourceError
from ir_core.stable_text import StableText

_logger = logging.getLogger("ir_core.fingerprint")
_PYTHON = ".".join(str(each) for each in sys.version_info[:3])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`digest` is sha256 over `factors`, (name, value) pairs; None if impossible, see `reason`."""

    digest: str | None
    reason: str
    factors: tuple[tuple[str, str], ...]


class Fingerprinter:
    """Makes fingerprints; reads each file once, so all of a process's fingerprints agree."""

    def __init__(self) -> None:
        self._sources = SourceClosure()
        self._warned: set[str] = set()

    def fingerprint(self, implementation: Implementation) -> Fingerprint:
        """Fingerprint of an implementation; warns once where there can be none."""
        try:
            factors = tuple(sorted(self._factors(implementation).items()))
        except UnreadableSourceError as error:
            self._warn(implementation, str(error))
            return Fingerprint(None, str(error), ())
        return Fingerprint(_digest(factors), "", factors)

    def fingerprint_module(self, module: str) -> Fingerprint:
        """Fingerprint of a module and of all that it imports; says why there can be none."""
        try:
            factors = tuple(sorted(self._sources.factors(module, None).items()))
        except UnreadableSourceError as error:
            return Fingerprint(None, str(error), ())
        return Fingerprint(_digest(factors), "", factors)

    def own_factors(self, implementation: Implementation) -> dict[str, str] | None:
        """The factors that no import leads to: values, flags, named libraries.

        None for an implementation without a fingerprint.
        """
        try:
            return _own(implementation, _values_of(implementation))
        except UnreadableSourceError:
            return None

    def changed(self, factors: Mapping[str, str]) -> str | None:
        """The first of recorded factors that is another one now; None if all are the same.

        `factors` are those of a fingerprint that are not its own. Nothing is parsed: where no file
        has changed, no import has.
        """
        return next((name for name, value in factors.items() if self._now(name) != value), None)

    def _now(self, factor: str) -> str | None:
        kind, _, name = factor.partition(" ")
        try:
            if kind == "library":
                return self._sources.libraries(name.partition("/")[0]).get(factor)
            if kind == "version":
                return self._sources.version(name)
            return self._sources.digest(name) if kind == "module" else None
        except UnreadableSourceError:
            return None

    def _factors(self, implementation: Implementation) -> dict[str, str]:
        values = _values_of(implementation)
        factors = _own(implementation, values)
        for function in values.functions:
            factors |= self._sources.factors(function.__module__, function.__code__.co_filename)
        for module in values.modules:
            factors |= self._sources.factors(module, None)
        return factors

    def _warn(self, implementation: Implementation, reason: str) -> None:
        name = f"{implementation.op.name}: {implementation.provider}"
        if name in self._warned:
            return
        self._warned.add(name)
        _logger.warning("%s has no fingerprint, so it is not cached: %s", name, reason)


def _values_of(implementation: Implementation) -> _Values:
    values = _Values()
    values.add("fn", implementation.written_fn)
    values.add("supports_args", implementation.supports_args)
    if implementation.provider == NATIVE:
        values.add("fake", implementation.op.fake)
    for layout in implementation.op.weight_layouts.packed:
        if layout.name in implementation.layouts:
            values.add(f"layout {layout.name}", (layout.pack, layout.unpack))
    values.add_globals()
    return values


def _own(implementation: Implementation, values: _Values) -> dict[str, str]:
    factors = {"python": _PYTHON, **values.factors}
    for flag in ("inplace", "opaque", "batch_invariant", "layouts"):
        factors[flag] = str(getattr(implementation, flag))
    for library in implementation.libraries:
        factors[f"library {library.name}"] = _file_digest(library)
    return factors


class _Values:
    """Walks what functions close over: constants become text, functions and modules a list."""

    def __init__(self) -> None:
        self.factors: dict[str, str] = {}
        self.functions: list[FunctionType] = []
        self.modules: set[str] = set()
        self._texts = StableText(self._function_text, self._module_text)

    def add(self, name: str, value: Any) -> None:
        """Enter a value under a name, as a factor "value NAME"."""
        text = self._texts.of(name, value)
        self.factors[unused(self.factors, f"value {name}")] = text

    def add_globals(self) -> None:
        """Enter the globals that the functions name."""
        named = NamedGlobals(self.functions)
        self.factors |= named.factors
        self.modules |= named.modules

    def _function_text(self, function: FunctionType) -> str:
        text = f"function {function.__module__}.{function.__qualname__}"
        if function in self.functions:
            return text
        self.functions.append(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in cells:
            self.add(f"{function.__qualname__}.{variable}", _contents(variable, cell))
        for kind in ("__defaults__", "__kwdefaults__"):
            self.add(f"{function.__qualname__}.{kind}", getattr(function, kind))
        return text

    def _module_text(self, value: type | ModuleType) -> str:
        module = value.__name__ if isinstance(value, ModuleType) else value.__module__
        self.modules.add(module)
        return f"{module}.{getattr(value, '__qualname__', '')}"


def _contents(variable: str, cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:
        raise UnreadableSourceError(f"`{variable}` is closed over but not set yet") from error


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UnreadableSourceError(f"library {path} cannot be read: {error}") from error


def _digest(factors: tuple[tuple[str, str], ...]) -> str:
    digest = hashlib.sha256()
    for text in (each for pair in factors for each in pair):
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
