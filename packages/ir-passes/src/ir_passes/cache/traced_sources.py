"""Digests of the source files that a trace read, by module, and whether one of them has changed.

Names of modules are recorded and no paths, so that an installation elsewhere counts as the same.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from ir_passes.cache.op_code import is_op_code
from ir_passes.errors import CannotStoreError

if TYPE_CHECKING:
    from ir_passes.tracing.model_trace import ModelTrace


def traced_sources(trace: ModelTrace) -> dict[str, str]:
    """Sha256 of the file of each module that Dynamo inlined code of.

    Raises:
        CannotStoreError: code came from no file, or from a file that is no module's.
    """
    codes: Iterable[CodeType] = trace.capture.graph_capture_output.traced_code
    files = {each.co_filename for each in codes if not is_op_code(each)}
    modules = dict(_modules_of(files))
    for file in sorted(files):
        if file not in modules:
            raise CannotStoreError(
                f"The model runs code from `{Path(file).name}`, which is the file of no imported "
                "module, so a change of it would go unseen. Move the code to a module."
            )
    return {modules[file]: _digest(Path(file)) for file in sorted(files, key=modules.__getitem__)}


def changed_source(recorded: Mapping[str, str]) -> str | None:
    """What is wrong with the first module whose file is not as recorded; None if all are.

    Nothing is imported.
    """
    known: dict[Path, str] = {}
    for name, digest in recorded.items():
        file = _file_of(name)
        if file is None:
            return f"module `{name}` is not there"
        if file not in known:
            try:
                known[file] = _digest(file)
            except CannotStoreError as error:
                return str(error)
        if known[file] != digest:
            return f"module `{name}` has changed"
    return None


def _modules_of(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each file that a module was imported from, with the module's name."""
    by_name: dict[str, list[str]] = {}
    for each in files:
        by_name.setdefault(Path(each).name, []).append(each)
    # A module that runs as a script has two names; the last one stays, which is its own.
    for name in sorted(sys.modules, key=lambda name: (name != "__main__", name)):
        file = _imported_file(name)
        if file is not None and file.name in by_name:
            for each in by_name[file.name]:
                if file.resolve() == Path(each).resolve():
                    yield each, name


def _file_of(name: str) -> Path | None:
    if name in sys.modules:
        return _imported_file(name)
    spec = _unimported_spec(name)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _unimported_spec(name: str) -> ModuleSpec | None:
    """The spec of a module that is not imported; `find_spec` would import its package."""
    package = name.rpartition(".")[0]
    if not package:
        return PathFinder.find_spec(name)
    if package in sys.modules:
        places = getattr(sys.modules[package], "__path__", None)
    else:
        spec = _unimported_spec(package)
        places = spec.submodule_search_locations if spec is not None else None
    return PathFinder.find_spec(name, list(places)) if places is not None else None


def _imported_file(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise CannotStoreError(f"the source file `{file.name}` cannot be read: {error}") from error
