"""Declares which dims of a model's arguments vary, once, at its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from ir_passes.errors import CompileError
from ir_passes.tracing.dynamic_dims import DynamicDims

_Class = TypeVar("_Class", bound=type)

DECLARED = "ir_dynamic_dims"


def support_compile(dynamic_dims: DynamicDims | None = None) -> Callable[[_Class], _Class]:
    """Decorate a module's class: `ir_passes.compile` then needs no `dynamic_dims` for it.

    Args:
        dynamic_dims: as of `ir_passes.compile`; by default dim 0 of every parameter of `forward`
            that is annotated as a tensor counts tokens.

    Raises:
        CompileError: a name that is no parameter of `forward`, or no tensor among them.
    """

    def declare(cls: _Class) -> _Class:
        forward: Any = getattr(cls, "forward", None)
        if forward is None:
            raise CompileError(f"`{cls.__name__}` has no `forward`; decorate a module's class.")
        parameters = inspect.signature(forward, eval_str=True).parameters
        dims = _inferred(parameters) if dynamic_dims is None else dynamic_dims
        unknown = {path.partition(".")[0] for path in dims} - set(parameters)
        if unknown or not dims:
            raise CompileError(
                f"`support_compile` of `{cls.__name__}`: {sorted(unknown) or 'no tensor'} among "
                f"the parameters of `forward`, {list(parameters)}."
            )
        setattr(cls, DECLARED, dims)
        return cls

    return declare


def declared_dims(function: object) -> DynamicDims:
    """The dims that a model's class declares; none for a function."""
    dims: DynamicDims = getattr(type(function), DECLARED, {})
    return dims


def _inferred(parameters: Any) -> dict[str, int]:
    return {
        name: 0 for name, each in parameters.items() if each.annotation in (Tensor, Tensor | None)
    }
