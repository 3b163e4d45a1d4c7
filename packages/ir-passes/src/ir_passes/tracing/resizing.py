"""Example arguments with another token count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ir_passes.tracing.dynamic_dims import (
    TOKENS,
    DynamicDims,
    labels_of,
    replaced,
    target_of,
    tensor_at,
)


def resize_tokens(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_dims: DynamicDims,
    size: int,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with zeros of another length in every dim that counts tokens."""
    bound = inspect.signature(target_of(function)).bind(*args, **kwargs)
    arguments: dict[str, Any] = dict(bound.arguments)
    for path, given in dynamic_dims.items():
        dims = [dim for dim, label in labels_of(given).items() if label == TOKENS]
        if not dims:
            continue
        name, *rest = path.split(".")
        resized = _resized(tensor_at(arguments, path), dims, size)
        arguments[name] = replaced(arguments[name], rest, resized)
    bound.arguments.update(arguments)
    return bound.args, bound.kwargs


def _resized(tensor: Tensor, dims: Sequence[int], size: int) -> Tensor:
    shape = [size if dim in dims else length for dim, length in enumerate(tensor.shape)]
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
