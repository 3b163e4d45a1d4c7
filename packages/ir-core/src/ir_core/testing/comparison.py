"""Comparison of tensors that ends in a sentence: where they differ most, got and expected."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ir_core.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Difference:
    """The element that is furthest outside its tolerance, and how many are outside."""

    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float
    num_outside: int
    num_elements: int

    def __str__(self) -> str:
        return (
            f"worst at index {list(self.index)}: got {self.got:.9g}, expected {self.expected:.9g} "
            f"(allowed difference {self.allowed:.3g}); {self.num_outside} of {self.num_elements} "
            "elements are outside"
        )


def worst_difference(got: Tensor, expected: Tensor, tolerance: Tolerance) -> Difference | None:
    """The worst element of `got` outside `tolerance` of `expected`, or None.

    Shapes are equal. `expected` may be wider: it is rounded to `got`'s dtype first, so a value that
    the dtype cannot hold counts as infinite. NaN equals NaN, and an infinity only itself.
    """
    reference = expected.to(got.dtype).to(torch.float64)
    value = got.to(torch.float64)
    same = (value == reference) | (value.isnan() & reference.isnan())
    allowed = tolerance.atol + tolerance.rtol * reference.abs()
    excess = ((value - reference).abs() / allowed.clamp_min(torch.finfo(torch.float64).tiny)).where(
        value.isfinite() & reference.isfinite(), torch.full_like(value, torch.inf)
    )
    excess = excess.masked_fill(same, 0.0)
    num_outside = int((excess > 1).sum())
    if num_outside == 0:
        return None
    at = tuple(int(each) for each in torch.unravel_index(excess.argmax(), excess.shape))
    return Difference(
        at,
        value[at].item(),
        reference[at].item(),
        allowed[at].item(),
        num_outside,
        value.numel(),
    )


def first_byte_difference(before: Tensor, after: Tensor) -> tuple[int, ...] | None:
    """Index of the first element whose bytes differ, NaN payloads and zero signs included."""
    if before.numel() == 0:
        return None
    differs = _bytes(before) != _bytes(after)
    if not differs.any():
        return None
    flat = differs.any(dim=-1).flatten().to(torch.uint8).argmax()
    return tuple(int(each) for each in torch.unravel_index(flat, before.shape))


def share_differing(got: Tensor, expected: Tensor) -> float:
    """Share of elements that are not the same number; 0 for an empty tensor."""
    if got.numel() == 0:
        return 0.0
    different = (got != expected) & ~(got.isnan() & expected.isnan())
    return float(different.double().mean())


def is_overlapping(first: Tensor, second: Tensor) -> bool:
    """Whether the two may share an element: same storage and crossing byte ranges."""
    if first.numel() == 0 or second.numel() == 0:
        return False
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return False
    (start, end), (other_start, other_end) = _byte_range(first), _byte_range(second)
    return start < other_end and other_start < end


def _bytes(tensor: Tensor) -> Tensor:
    dense = tensor.detach().contiguous().reshape(*tensor.shape, 1)
    return dense.view(torch.uint8)


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.itemsize
