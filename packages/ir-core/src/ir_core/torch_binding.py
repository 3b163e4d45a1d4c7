"""The torch side of a registry: schemas, torch ops, fakes. Nothing else touches torch.library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.library import Library, infer_schema

from ir_core.errors import RegistrationError

# Kernels under this key are never decomposed, so graphs keep the op as one node.
_KEY = "CompositeExplicitAutograd"
_kernels: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


class TorchBinding:
    """Defines torch ops in one namespace; they live as long as this object does."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._library = Library(namespace, "FRAGMENT")

    def define(
        self,
        name: str,
        overload: str,
        schema: str,
        kernel: Callable[..., Any],
        fake: Callable[..., Any],
    ) -> torch._ops.OpOverload:
        """Define `namespace::name.overload`; `overload` may be "" for the default one."""
        qualified = f"{name}.{overload}" if overload else name
        self._library.define(f"{qualified}{schema}")
        self._library.impl(qualified, kernel, _KEY)
        self._library._register_fake(qualified, fake)
        packet = getattr(getattr(torch.ops, self.namespace), name)
        defined = getattr(packet, overload or "default")
        _kernels[defined] = kernel
        return defined


def kernel_of(overload: Any) -> Callable[..., Any] | None:
    """The Python function that an op defined here runs; None for any other op.

    A dispatch mode that calls it, instead of the op, sees what it calls.
    """
    return _kernels.get(overload)


def register_kernel_fake(qualified_name: str, fake: Callable[..., Any]) -> None:
    """Give an op that a compiled library has defined, `namespace::name`, its fake, for good."""
    torch.library.register_fake(qualified_name, fake)


def infer_schema_text(function: Callable[..., Any], mutates: Sequence[str]) -> str:
    """Schema of an annotated function as torch spells it, `(Tensor x, …) -> Tensor`.

    Raises:
        RegistrationError: an annotation that torch cannot express; names the function.
    """
    try:
        return infer_schema(_plain(function), mutates_args=tuple(mutates))
    except (ValueError, TypeError, NameError, RuntimeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise RegistrationError(f"`{name}` cannot be an op: {error}") from error


def parse_schema_text(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Types of the parameters and of the returns, `?` marking what may be None."""
    parsed = torch._C.parse_schema(f"ir::parsed{text}")
    # `real_type` tells a dtype from the int it travels as.
    types = tuple(_spell(argument.real_type) for argument in parsed.arguments)
    return types, tuple(_spell(value.type) for value in parsed.returns)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or for a partial or a wrapper a stand-in with its signature."""
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        return function

    def stand_in() -> None: ...

    stand_in.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return stand_in


def _spell(type_: Any) -> str:
    if isinstance(type_, torch._C.OptionalType):
        return f"{_spell(type_.getElementType())}?"
    if isinstance(type_, torch._C.ListType):
        return f"{_spell(type_.getElementType())}[]"
    return str(type_)
