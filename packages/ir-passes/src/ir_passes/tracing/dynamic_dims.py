"""Which dims of a call's arguments vary, and how torch is to treat them while it traces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.fx.experimental import _config

from ir_core.suggestion import suggest
from ir_passes.config import DynamicShapesType
from ir_passes.errors import TraceError

TOKENS = "tokens"
"""Label of a dim that is given without one."""

DynamicDims = Mapping[str, int | Sequence[int] | Mapping[int, str]]
"""Dims by the argument's path, "input_ids" or "step.slot_mapping": dims that count tokens, or a
label for each dim. Dims with one label are one number."""


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """One dim that varies: where it is, and which number it counts."""

    path: str
    dim: int
    label: str


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a call whose dynamic dims are marked; the tensors share the caller's memory."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dims: tuple[DynamicDim, ...]


def mark_dynamic_dims(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_dims: DynamicDims,
    kind: DynamicShapesType,
) -> Call:
    """Mark dims of a call's arguments as dynamic, on aliases of the caller's tensors.

    Raises:
        TraceError: a path that leads to no tensor, a dim that it lacks, or two sizes under one
            label.
    """
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    arguments: dict[str, Any] = dict(bound.arguments)
    sizes: dict[str, tuple[int, str]] = {}
    dims: list[DynamicDim] = []
    for path, given in dynamic_dims.items():
        tensor = tensor_at(arguments, path).detach()
        for dim, label in labels_of(given).items():
            _check(path, tensor, dim, label, sizes)
            _mark(tensor, dim, label, kind)
            dims.append(DynamicDim(path, dim, label))
        name, *rest = path.split(".")
        arguments[name] = replaced(arguments[name], rest, tensor)
    bound.arguments.update(arguments)
    return Call(bound.args, bound.kwargs, tuple(dims))


@contextmanager
def shapes_mode(kind: DynamicShapesType) -> Generator[None]:
    """Torch's setting for a kind of dynamic shapes, while something is traced or compiled."""
    is_oblivious = kind is DynamicShapesType.BACKED_SIZE_OBLIVIOUS
    with _config.patch(backed_size_oblivious=is_oblivious):  # type: ignore[attr-defined]
        yield


def target_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of a module or a function runs, with the signature of the call."""
    return function.forward if isinstance(function, nn.Module) else function


def labels_of(given: int | Sequence[int] | Mapping[int, str]) -> Mapping[int, str]:
    """The label of each dim of one path."""
    if isinstance(given, Mapping):
        return given
    return dict.fromkeys((given,) if isinstance(given, int) else given, TOKENS)


def _check(
    path: str, tensor: Tensor, dim: int, label: str, sizes: dict[str, tuple[int, str]]
) -> None:
    if not 0 <= dim < tensor.dim():
        raise TraceError(f"`dynamic_dims` gives dim {dim} of `{path}`, which has {tensor.dim()}.")
    size, first = sizes.setdefault(label, (tensor.shape[dim], path))
    if size != tensor.shape[dim]:
        raise TraceError(
            f"`{path}` has {tensor.shape[dim]} {label} in dim {dim}, but `{first}` has {size}; use "
            "another label for another number."
        )


def _mark(tensor: Tensor, dim: int, label: str, kind: DynamicShapesType) -> None:
    # It costs a second, and only what is compiled needs it.
    from torch._dynamo import decorators  # noqa: PLC0415

    # A backed size is at least 2, and calls of 1 token get a program of their own; calls of 1 of
    # anything else do not.
    if kind is DynamicShapesType.UNBACKED or (kind is DynamicShapesType.BACKED and label != TOKENS):
        hint = tensor.shape[dim]
        decorators.mark_unbacked(tensor, dim, shape_id=label, hint_override=hint)
    else:
        decorators.mark_dynamic(tensor, dim)


def tensor_at(arguments: Mapping[str, Any], path: str) -> Tensor:
    """The tensor at a path; TraceError if there is none."""
    value: Any = arguments
    for part in path.split("."):
        known = dict(parts_of(value))
        if part not in known:
            raise TraceError(f"`dynamic_dims` names `{path}`; {suggest(part, known)}")
        value = known[part]
    if not isinstance(value, Tensor):
        raise TraceError(f"`dynamic_dims` names `{path}`, which is a {type(value).__name__}.")
    return value


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a container's elements; nothing for any other value."""
    if isinstance(value, Mapping):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        yield from zip(map(str, names), value, strict=True)


def replaced(value: Any, path: Sequence[str], tensor: Tensor) -> Any:
    """A copy of a nest of containers with the tensor in one place."""
    if not path:
        return tensor
    parts = dict(parts_of(value))
    parts[path[0]] = replaced(parts[path[0]], path[1:], tensor)
    if isinstance(value, Mapping):
        return dict(zip(value, parts.values(), strict=True))
    if hasattr(value, "_fields"):
        return type(value)(*parts.values())
    return type(value)(parts.values())
