"""What a node's fake value says: its tensors, their storages, and whether two agree.

No question here adds a guard: what is not known from the shapes alone counts as different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, statically_known_true


def fake_of(node: Node) -> Any:
    """The fake value of a node; None where it has none."""
    return node.meta.get("val")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a value, which may be a tensor or a nest of tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def storages_in(value: Any) -> frozenset[int]:
    """Identities of the storages of a value's tensors; equal ones are the same memory."""
    return frozenset(
        each.untyped_storage()._cdata for each in tensors_in(value) if each.layout is torch.strided
    )


def storages_of(node: Node) -> frozenset[int]:
    """Identities of the storages that a node's value lies in."""
    return storages_in(fake_of(node))


def symbols_in(values: Iterable[Any]) -> frozenset[sympy.Symbol]:
    """The symbols in the sizes, strides and numbers of some values."""
    found: set[sympy.Symbol] = set()
    for value in values:
        if isinstance(value, SymInt):
            found |= free_symbols(value)
        for tensor in tensors_in(value):
            found |= free_symbols(tensor)
    return frozenset(found)


def fake_mode_of(graph: Graph) -> FakeTensorMode | None:
    """The mode that a graph's fake values belong to; None if it has none."""
    for node in graph.nodes:
        for tensor in tensors_in(fake_of(node)):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    return None


def is_known_equal(first: Any, second: Any) -> bool:
    """Whether two sizes are equal for every value of their symbols."""
    return bool(statically_known_true(first == second))


def is_known_shape(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have one shape for every value of their symbols."""
    return _are_equal(first.shape, second.shape)


def is_known_contiguous(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous for every value of its symbols."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not is_known_equal(size, 1) and not is_known_equal(stride, expected):
            return False
        expected = expected * size
    return True


def difference(first: Any, second: Any) -> str | None:
    """First difference in structure, dtype, device, shape or strides, in words; None if none."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _tensor_difference(first, second)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return f"{len(first)} values, not {len(second)}"
        found = (difference(*pair) for pair in zip(first, second, strict=True))
        return next((each for each in found if each is not None), None)
    if _is_number(first) and _is_number(second):
        return None if is_known_equal(first, second) else f"{first}, not {second}"
    if type(first) is type(second):
        return None
    return f"{type(first).__name__}, not {type(second).__name__}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | SymInt | SymFloat | SymBool)


def _tensor_difference(first: Tensor, second: Tensor) -> str | None:
    for fact in ("dtype", "device", "layout"):
        mine, theirs = getattr(first, fact), getattr(second, fact)
        if mine != theirs:
            return f"{fact} {mine}, not {theirs}"
    if not is_known_shape(first, second):
        return f"shape {tuple(first.shape)}, not {tuple(second.shape)}"
    if first.layout is torch.strided and not _have_equal_strides(first, second):
        return f"strides {first.stride()}, not {second.stride()}"
    return None


def _are_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(is_known_equal, first, second))


def _have_equal_strides(first: Tensor, second: Tensor) -> bool:
    # The stride of a dim of size 1 moves nothing.
    return all(
        is_known_equal(size, 1) or is_known_equal(mine, theirs)
        for size, mine, theirs in zip(first.shape, first.stride(), second.stride(), strict=True)
    )
