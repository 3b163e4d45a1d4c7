"""Facts of a strided layout that hold for every number of tokens. Sees sizes and strides only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Size = int | torch.SymInt


def is_always_contiguous(
    sizes: Sequence[Size], strides: Sequence[Size], hidden: frozenset[int]
) -> bool:
    """Whether the layout is row-major and dense for every size of the hidden dims.

    Unlike torch's answer, a hidden dim that has one token now must have the stride it would need
    with more.
    """
    expected: Any = 1
    for dim in reversed(range(len(sizes))):
        size = sizes[dim]
        if (dim in hidden or size != 1) and not _is_known_equal(strides[dim], expected):
            return False
        # torch gives the dims around an empty one strides as if it had one element.
        expected = expected * (max(size, 1) if isinstance(size, int) else torch.sym_max(size, 1))
    return True


def depends_on_token_dims(
    sizes: Sequence[Size], strides: Sequence[Size], hidden: frozenset[int], dim: int
) -> bool:
    """Whether the stride of a dim grows with a hidden dim, which is so if that dim lies inside it.

    A symbolic stride always does. Where two strides are equal, one of the dims has size 1 now; the
    hidden one lies inside unless the visible one has size 1 and comes later.
    """
    stride = strides[dim]
    if not isinstance(stride, int):
        return True
    for token_dim in hidden:
        inner = strides[token_dim] if token_dim < len(strides) else stride + 1
        if token_dim == dim or stride == 0 or not isinstance(inner, int):
            continue
        is_tie_inside = inner == stride and (sizes[dim] != 1 or token_dim > dim)
        if inner < stride or is_tie_inside:
            return True
    return False


def _is_known_equal(stride: Size, expected: Size) -> bool:
    if isinstance(stride, int) and isinstance(expected, int):
        return stride == expected
    # Sympy is loaded already where sizes are symbolic, and costs too much where they are not.
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # noqa: PLC0415

    return statically_known_true(stride == expected)
