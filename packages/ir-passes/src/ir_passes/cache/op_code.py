"""Recognises the methods that ir_core builds for each op, which are in no module's file.

What they do follows from the op's declaration and from ir_core's version.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from ir_core import IrOp


def is_op_code(code: CodeType) -> bool:
    """Whether a code object is that of a method that ir_core built."""
    return any(each.__code__ is code for each in _op_methods())


def is_op_scope(scope: object) -> bool:
    """Whether this is the globals of a method that ir_core built."""
    return any(each.__globals__ is scope for each in _op_methods())


def _op_methods() -> Iterator[FunctionType]:
    """Methods of the classes that ir_core makes for ops, as long as it is their author."""
    for kind in IrOp.__subclasses__():
        for each in vars(kind).values():
            if isinstance(each, FunctionType) and _is_built(each):
                yield each


def _is_built(function: FunctionType) -> bool:
    is_named = function.__code__.co_filename.startswith("<ir op ")
    return is_named and "__name__" not in function.__globals__
