"""The stored code of a piece that Inductor compiled for a CPU. Refuses what it cannot reproduce.

Inductor's callable is a method in a generated module. Of the module's text the runner is kept;
that it will find the same objects after loading is checked on the living module.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch._inductor.runtime.cache_dir_utils import cache_dir

from ir_passes.backends.code_environment import (
    provided_names,
    resolve,
    unknown_names,
    used_names,
)
from ir_passes.backends.kernel_library import ENTRY
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode
from ir_passes.cache.safe_files import refuse_reachable_by_others
from ir_passes.errors import CannotStoreError, UntrustedEntryError

_FIXED_THREADS = re.compile(r"\bnum_threads\(\s*\d")
_HARNESS = "__name__ == '__main__'"
_WAITING = ("async_compile.wait(globals())", "del async_compile")


def extract_code(piece: CompiledPiece) -> StoredCode:
    """The code of what Inductor returned.

    Raises:
        CannotStoreError: it is more than plain CPU code; says what cannot be kept.
    """
    function = _generated_function(piece)
    namespace = function.__globals__
    tree = _parse(namespace["__file__"], function)
    listings = dict(_kernels(tree.body))
    source = _source_of_runner(tree.body)
    _check_names(used_names(source), listings.keys(), namespace)
    libraries = {name: _library(name, namespace[name]) for name in listings}
    return StoredCode(source, libraries, listings)


def _generated_function(piece: CompiledPiece) -> FunctionType:
    function = piece.__func__ if isinstance(piece, MethodType) else piece
    if (
        not isinstance(piece, MethodType)
        or not isinstance(function, FunctionType)
        or function.__qualname__ != "Runner.call"
        or "__file__" not in function.__globals__
    ):
        raise CannotStoreError(f"Inductor's callable is {piece!r}, not the method that it writes.")
    return function


def _parse(path: str, function: FunctionType) -> ast.Module:
    try:
        text = Path(path).read_text()
        tree = ast.parse(text)
        code = compile(text, path, "exec", dont_inherit=True)
    except (OSError, UnicodeError, SyntaxError) as error:
        raise CannotStoreError(f"Inductor's file of the piece cannot be read: {error}") from error
    if not any(_is_same(each, function.__code__) for each in _methods_of_runner(code)):
        raise CannotStoreError("Inductor's file of the piece has changed since it was loaded.")
    return tree


def _methods_of_runner(code: CodeType) -> Iterator[CodeType]:
    for runner in _codes_in(code):
        if runner.co_name == "Runner":
            yield from _codes_in(runner)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def _is_same(first: CodeType, second: CodeType) -> bool:
    facts = ("co_name", "co_code", "co_consts", "co_names", "co_varnames")
    return all(getattr(first, each) == getattr(second, each) for each in facts)


def _kernels(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The name and the C++ text of each kernel; refuses statements that do something else."""
    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef():
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called) as call):
                if ast.unparse(called).startswith("async_compile."):
                    yield name, _listing(name, call)
            case ast.Assign(targets=[ast.Name()]):
                pass
            case ast.If(test=test) if ast.unparse(test) == _HARNESS:
                pass
            case _ if ast.unparse(statement) in _WAITING:
                pass
            case _:
                raise CannotStoreError(
                    f"Inductor's module runs `{ast.unparse(statement)[:80]}` when it is loaded."
                )


def _listing(name: str, call: ast.Call) -> str:
    match call:
        case ast.Call(
            func=ast.Attribute(attr="cpp_pybinding"),
            args=[ast.List(), ast.Constant(value=str(text))],
            keywords=[],
        ):
            pass
        case _:
            raise CannotStoreError(
                f"Kernel `{name}` is made by `{ast.unparse(call.func)}`; only C++ kernels for the "
                "CPU are stored."
            )
    if _FIXED_THREADS.search(text):
        raise CannotStoreError(
            f"Kernel `{name}` is for a fixed number of threads (`cpp.dynamic_threads` is off)."
        )
    return text


def _source_of_runner(statements: Iterable[ast.stmt]) -> str:
    """The class and what makes its one instance, without comments."""
    kept = [each for each in statements if _is_of_runner(each)]
    module = ast.Module(kept, type_ignores=[])
    source = ast.unparse(module) + "\n"
    if ast.dump(ast.parse(source)) != ast.dump(module):
        raise CannotStoreError("Python does not write Inductor's module as it was read.")
    return source


def _is_of_runner(statement: ast.stmt) -> bool:
    match statement:
        case ast.ClassDef(name="Runner"):
            return True
        case ast.Assign(targets=[ast.Name(id="runner" | "call")]):
            return True
        case _:
            return False


def _check_names(names: Set[str], kernels: Set[str], namespace: Mapping[str, Any]) -> None:
    """Refuse names that are not provided, or stand for something else in the living module."""
    provided = provided_names()
    unknown = unknown_names(names, kernels, provided)
    if unknown:
        raise CannotStoreError(
            f"Inductor's code uses {', '.join(f'`{each}`' for each in unknown)}, which stored code "
            "cannot have."
        )
    for name in names - kernels:
        if not _is_same_object(name, provided, namespace):
            raise CannotStoreError(f"`{name}` means something else in Inductor's module.")


def _is_same_object(name: str, provided: Mapping[str, Any], namespace: Mapping[str, Any]) -> bool:
    if name.partition(".")[0] not in provided:
        # A builtin of Python, unless the module has a name of its own for it.
        return name not in namespace
    try:
        return resolve(name, provided) is resolve(name, namespace)
    except LookupError:
        return False


def _library(name: str, kernel: Any) -> bytes:
    module = getattr(kernel, "__self__", None)
    path = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or path is None or kernel.__name__ != ENTRY:
        raise CannotStoreError(f"Kernel `{name}` is {kernel!r}, not a function of a library.")
    try:
        return _read_own(name, Path(os.path.realpath(path)))
    except UntrustedEntryError as error:
        raise CannotStoreError(
            f"Other users could have written the library of kernel `{name}`: {error}, or set "
            "`TORCHINDUCTOR_CACHE_DIR` to a directory that only you can enter."
        ) from error
    except OSError as error:
        raise CannotStoreError(f"The library of kernel `{name}` cannot be read: {error}") from error


def _read_own(name: str, path: Path) -> bytes:
    root = Path(os.path.realpath(cache_dir()))
    if not path.is_relative_to(root):
        raise CannotStoreError(
            f"The library of kernel `{name}`, {path}, lies outside of Inductor's directory {root}; "
            "set `TORCHINDUCTOR_CACHE_DIR` before the start, and leave it."
        )
    refuse_reachable_by_others(root, path)
    return path.read_bytes()
