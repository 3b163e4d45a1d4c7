"""The names that stored code may use, and the check that it uses no other. Runs no code.

The table is the part of Inductor's header that does not need Inductor. What is not in it can be
neither stored nor loaded.
"""

from __future__ import annotations

import ast
import cmath
import math
import symtable
from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._dynamo import guards
from torch._ops import OpOverload, OpOverloadPacket

# Inductor calls these by the names that its select_algorithm gives them.
_EXTERN_KERNELS = (
    *("mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "_grouped_mm"),
    *("_scaled_grouped_mm", "_weight_int8pack_mm", "convolution"),
)
_BUILTINS = frozenset(
    ("abs", "bool", "float", "int", "len", "list", "max", "min", "range", "round", "tuple", "zip")
) | {"RuntimeError", "AssertionError"}
_TORCH_FUNCTIONS = frozenset(("as_strided", "sym_float", "_sym_sqrt"))
# Torch's compilers define some of these ops in Python when they are imported.
_COMPILERS_OPS = ("prims", "quantized_decomposed", "streams", "flex_lib")
_TORCH_FACTS = torch.dtype | torch.layout | torch.memory_format


def provided_names() -> dict[str, Any]:
    """What stored code finds under each name, besides its kernels and Python's builtins."""
    ops: Any = torch.ops
    native: Any = guards
    return {
        "torch": torch,
        "math": math,
        "inf": math.inf,
        "nan": math.nan,
        "nanj": cmath.nanj,
        "device": torch.device,
        "empty_strided": torch.empty_strided,
        "aten": ops.aten,
        "inductor_ops": ops.inductor,
        "_quantized": ops._quantized,
        "assert_size_stride": native.assert_size_stride,
        "assert_alignment": native.assert_alignment,
        "empty_strided_cpu": native._empty_strided_cpu,
        "reinterpret_tensor": native._reinterpret_tensor,
        "alloc_from_pool": ops.inductor._alloc_from_pool,
        "extern_kernels": _extern_kernels(),
    }


def used_names(source: str) -> set[str]:
    """The names outside of itself that code uses, each with its attributes: `torch.ops.aten.add`.

    Raises:
        SyntaxError: it is not Python.
    """
    table = symtable.symtable(source, "<stored code>", "exec")
    own = {each.get_name() for each in table.get_symbols() if each.is_assigned()}
    outside = _globals_in(table) - own
    return {name for name in _dotted_names(ast.parse(source)) if _root(name) in outside}


def unknown_names(
    names: Collection[str], kernels: Collection[str], provided: Mapping[str, Any]
) -> list[str]:
    """Which of the names that code uses are neither its kernels nor in the table, sorted."""
    known = _BUILTINS.union(kernels)
    return sorted(each for each in names if each not in known and not _is_known(each, provided))


def resolve(name: str, namespace: Mapping[str, Any]) -> Any:
    """What a name with its attributes stands for.

    Raises:
        LookupError: it stands for nothing.
    """
    root, *attributes = name.split(".")
    found = namespace[root]
    for attribute in attributes:
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise LookupError(name) from error
    return found


def _extern_kernels() -> SimpleNamespace:
    # A torch that lacks one generates no code that calls it.
    found = {name: getattr(torch, name) for name in _EXTERN_KERNELS if hasattr(torch, name)}
    return SimpleNamespace(**found, _mm_plus_mm=torch.ops.inductor._mm_plus_mm)


def _globals_in(table: symtable.SymbolTable) -> set[str]:
    is_module = table.get_type() == "module"
    found = {
        each.get_name()
        for each in table.get_symbols()
        if each.is_referenced() and (is_module or each.is_global())
    }
    return found.union(*map(_globals_in, table.get_children()))


def _dotted_names(node: ast.AST) -> Iterator[str]:
    """The longest ones: of `a.b.c(d)` they are `a.b.c` and `d`."""
    dotted = _dotted(node)
    if dotted is not None:
        yield dotted
        return
    for child in ast.iter_child_nodes(node):
        yield from _dotted_names(child)


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _root(name: str) -> str:
    return name.partition(".")[0]


def _is_known(name: str, provided: Mapping[str, Any]) -> bool:
    if _root(name) not in provided:
        return False
    try:
        found = resolve(name, provided)
    except LookupError:
        return False
    if _root(name) not in ("torch", "aten", "inductor_ops", "_quantized"):
        return True
    if isinstance(found, OpOverload | OpOverloadPacket):
        return not name.startswith(tuple(f"torch.ops.{each}." for each in _COMPILERS_OPS))
    if isinstance(found, _TORCH_FACTS):
        return True
    return name.removeprefix("torch.") in _TORCH_FUNCTIONS
