"""Whether the arguments of a call are of the kind that a model was compiled for.

A graph holds the example's numbers and texts as constants, and its tensors' dtypes, devices and
fixed sizes: another argument would not be an error in it, but a wrong result.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ir_passes.cache.constants import describe_constant
from ir_passes.errors import CannotStoreError, CompileError
from ir_passes.tracing.dynamic_dims import parts_of


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor: None stands for a size or stride that may be any."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    def problem(self, tensor: Tensor) -> str | None:
        """How a tensor differs; None if it does not."""
        if tensor.dtype is not self.dtype:
            return f"{tensor.dtype}, not {self.dtype}"
        if tensor.device != self.device:
            return f"on {tensor.device}, not on {self.device}"
        if not _fits(self.shape, tensor.shape):
            return f"of shape {tuple(tensor.shape)}, not {_spell(self.shape)}"
        moving = [size != 1 for size in tensor.shape]
        if not _fits(self.strides, tensor.stride(), moving):
            return f"of strides {tensor.stride()}, not {_spell(self.strides)}"
        return None


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """The arguments of one traced call, by path, and what later ones must have in common.

    Attributes:
        signature: of the call.
        tensors: what each tensor must be like.
        constants: all else, which is part of the compiled code.
        unread: paths of tensors that the compiled code does not take.
    """

    signature: inspect.Signature
    tensors: Mapping[str, ExpectedTensor]
    constants: Mapping[str, Any]
    unread: frozenset[str] = frozenset()

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise CompileError, naming the argument, unless a call is like the traced one."""
        found = dict(named_leaves(self.signature, args, kwargs))
        for path, expected in self.tensors.items():
            value = found.get(path)
            if not isinstance(value, Tensor):
                raise _wrong(path, f"a {type(value).__name__}, not a tensor")
            problem = expected.problem(value)
            if problem is not None:
                raise _wrong(path, problem)
            if value.requires_grad and torch.is_grad_enabled():
                raise CompileError(f"Argument `{path}` requires grad while grad mode is on.")
        for path, expected in self.constants.items():
            if path not in found or not _is_same(found[path], expected):
                raise _wrong(path, f"{found.get(path)!r}, not {expected!r}")
        for path in found.keys() - self.tensors.keys() - self.constants.keys() - self.unread:
            raise _wrong(path, "there, and the example had none")


def named_leaves(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Path and value of everything in a call's arguments, defaults included."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return _leaves(bound.arguments)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    parts = list(parts_of(value))
    if not parts:
        yield path, value
    for name, each in parts:
        yield from _leaves(each, f"{path}.{name}" if path else name)


def _fits(
    expected: Sequence[int | None], sizes: Sequence[int], counts: Sequence[bool] | None = None
) -> bool:
    counts = counts or [True] * len(sizes)
    return len(expected) == len(sizes) and all(
        want is None or want == size or not matters
        for want, size, matters in zip(expected, sizes, counts, strict=True)
    )


def _spell(sizes: Sequence[int | None]) -> str:
    return f"({', '.join('any' if each is None else str(each) for each in sizes)})"


def _is_same(value: Any, expected: Any) -> bool:
    """Whether two are one constant, to the bit; what is none has to be one object."""
    if value is expected:
        return True
    if type(value) is not type(expected):
        return False
    if isinstance(expected, Mapping):
        return not value and not expected
    try:
        return describe_constant(value) == describe_constant(expected)
    except CannotStoreError:
        return False


def _wrong(path: str, problem: str) -> CompileError:
    return CompileError(
        f"Argument `{path}` is {problem}; the model was compiled for the latter. Compile it again "
        "for other arguments."
    )
