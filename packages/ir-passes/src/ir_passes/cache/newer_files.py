"""Refuses files that were saved after the process began and are no longer what it imported.

A digest tells what lies on disk; what ran was read before. Where a file is older than the process
the two are one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ir_passes.cache.code_digest import code_digest
from ir_passes.errors import CannotStoreError

_IMPORTED_AT = time.time()
_OWN = ("ir_core.", "ir_passes.", "ir_core", "ir_passes")


def refuse_newer_files(modules: Iterable[str]) -> None:
    """Raise CannotStoreError for a module whose newer file holds other code than runs here."""
    start = process_start()
    for name in sorted(set(modules)):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or not file.endswith(".py") or _saved_at(file) < start:
            continue
        if not set(_loaded(module, file, name)) <= set(_written(file)):
            raise CannotStoreError(
                f"`{Path(file).name}` was saved after module `{name}` was imported, and holds "
                "other code than what ran."
            )


def own_modules() -> Iterator[str]:
    """The modules of the compiler that are imported."""
    return (name for name in list(sys.modules) if name in _OWN or name.startswith(_OWN[:2]))


def process_start() -> float:
    """When this process began, in seconds since the epoch; this module's import, if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED_AT


def _saved_at(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError as error:
        raise CannotStoreError(f"`{Path(file).name}` is gone: {error.strerror}.") from error


def _written(file: str) -> Iterator[str]:
    try:
        pending = [compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError) as error:
        raise CannotStoreError(f"`{Path(file).name}` cannot be read: {error}.") from error
    while pending:
        code = pending.pop()
        yield code_digest(code)
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]


def _loaded(holder: Any, file: str, module: str) -> Iterator[str]:
    """Digests of the functions of a module, or of a class in it, that were read from a file."""
    for value in list(vars(holder).values()):
        inner: Any = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(value, type):
            if value.__module__ == module and value is not holder:
                yield from _loaded(value, file, module)
        elif isinstance(inner, FunctionType):
            code = unwrap(inner).__code__
            if code.co_filename == file:
                yield code_digest(code)
