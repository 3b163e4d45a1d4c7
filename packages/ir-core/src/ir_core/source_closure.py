"""The files a module's behaviour rests on: its imports, followed inside its distribution."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path

_LIBRARY_SUFFIXES = frozenset((".so", ".pyd", ".dylib", ".dll"))


class UnreadableSourceError(Exception):
    """Something has no file or no stable text; the message says what. Stays inside the package."""


@dataclass(frozen=True, slots=True)
class _Module:
    """One module: digest of its file, its package, and the names its source imports."""

    digest: str
    imports: tuple[str, ...]


class SourceClosure:
    """Reads modules and remembers them; each file is read once."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._digests: dict[str, str] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._libraries: dict[str, dict[str, str]] = {}
        self._distributions: Mapping[str, list[str]] | None = None

    def factors(self, module: str, code_file: str | None) -> dict[str, str]:
        """Digests of the files and versions that a module rests on, by name.

        `code_file` is where the function says it was compiled from; it must be the module's file.

        Raises:
            UnreadableSourceError: no such file, as in a REPL, `exec` or `python -c`.
        """
        _check_file(module, code_file)
        own = self._versions_of(_top(module))
        factors = dict(self.libraries(_top(module)))
        pending = [module]
        while pending:
            name = pending.pop()
            if f"module {name}" in factors:
                continue
            found = self._module(name)
            factors[f"module {name}"] = found.digest
            for imported in found.imports:
                versions = self._versions_of(_top(imported))
                if not versions or versions == own:
                    pending.append(imported)
                else:
                    factors |= versions
        return factors

    def digest(self, module: str) -> str:
        """Digest of a module's file; that of nothing for one without a file.

        Raises:
            UnreadableSourceError: the file cannot be read.
        """
        known = self._modules.get(module)
        if known is not None:
            return known.digest
        if module not in self._digests:
            self._digests[module] = hashlib.sha256(_source(module)).hexdigest()
        return self._digests[module]

    def version(self, distribution: str) -> str:
        """Version of a distribution, "absent" if it is not installed."""
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return "absent"

    def _module(self, name: str) -> _Module:
        known = self._modules.get(name)
        if known is None:
            file, source = _file(name), _source(name)
            imports = _imports(name, source) if file and file.endswith(".py") else ()
            kept = sorted({each for each in imports if _top(each) not in sys.stdlib_module_names})
            known = _Module(hashlib.sha256(source).hexdigest(), tuple(kept))
            self._modules[name] = known
        return known

    def _versions_of(self, top: str) -> dict[str, str]:
        known = self._versions.get(top)
        if known is None:
            if top not in sys.modules and _spec(top) is None:
                known = {f"version {top}": "absent"}
            else:
                names = self._distributions_of(top)
                known = {f"version {each}": metadata.version(each) for each in names}
            self._versions[top] = known
        return known

    def _distributions_of(self, top: str) -> list[str]:
        # Most are named like their module; the table of all takes a third of a second to read.
        try:
            return [metadata.distribution(top).name]
        except metadata.PackageNotFoundError:
            pass
        if top in sys.stdlib_module_names or top == "__main__":
            return []
        if self._distributions is None:
            self._distributions = metadata.packages_distributions()
        return sorted(set(self._distributions.get(top, ())))

    def libraries(self, top: str) -> dict[str, str]:
        """Digests of the compiled libraries in a top-level package, as factors by name."""
        known = self._libraries.get(top)
        if known is None:
            known = self._libraries[top] = _library_digests(top)
        return known


def _check_file(module: str, code_file: str | None) -> None:
    file = _file(module)
    if file is None or file.startswith("<"):
        raise UnreadableSourceError(f"module `{module}` has no file")
    if code_file is not None and Path(code_file).resolve() != Path(file).resolve():
        raise UnreadableSourceError(f"its code comes from `{code_file}`, not from a module's file")


def _top(module: str) -> str:
    return module.partition(".")[0]


def _imports(name: str, source: bytes) -> Iterator[str]:
    package = _package(name)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            for alias in node.names:
                if _is_module(f"{base}.{alias.name}"):
                    yield f"{base}.{alias.name}"


def _is_module(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and _spec(name) is not None


def _spec(name: str) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__spec__
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return None  # finding it would import the parent
    try:
        return find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None


def _file(name: str) -> str | None:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = _spec(name)
    return spec.origin if spec is not None and spec.has_location else None


def _package(name: str) -> str:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__package__ or ""
    spec = _spec(name)
    return (spec.parent or "") if spec is not None else ""


def _source(name: str) -> bytes:
    file = _file(name)
    return _read(name, file) if file else b""


def _read(name: str, file: str) -> bytes:
    # A loader's own reader reads from a zip archive too.
    read = getattr(getattr(_spec(name), "loader", None), "get_data", None)
    try:
        return read(file) if read is not None else Path(file).read_bytes()
    except OSError as error:
        raise UnreadableSourceError(f"file of module `{name}` cannot be read: {error}") from error


def _library_digests(top: str) -> dict[str, str]:
    roots = getattr(sys.modules.get(top), "__path__", ())
    return {
        f"library {top}/{path.relative_to(root).as_posix()}": hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for root in roots
        for path in sorted(Path(root).rglob("*"))
        if _is_library(path)
    }


def _is_library(path: Path) -> bool:
    # The version may come last, as in `libname.so.1`.
    return not _LIBRARY_SUFFIXES.isdisjoint(path.suffixes) and path.is_file()
