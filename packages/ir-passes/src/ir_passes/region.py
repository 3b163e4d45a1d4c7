"""The bytes of a storage that a fake tensor covers, and whether two of them meet.

Sizes may be symbols. A dim of symbolic size steps through the storage by its stride; modulo that
stride what remains is static and exact, so columns of one buffer are known to be apart for every
token count. Where nothing can be proved, regions count as overlapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import SymInt, Tensor

from ir_passes.metadata import is_known_equal

# A static region that spans more is not compared byte by byte.
_MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Geometry:
    offset: Any
    dims: tuple[tuple[Any, Any], ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Geometry:
        size = tensor.element_size()
        steps = tuple(
            (n, step * size) for n, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        return cls(tensor.storage_offset() * size, steps, size)

    def is_empty(self) -> bool:
        return any(is_known_equal(size, 0) for size, _ in self.dims)

    def free_dims(self) -> list[tuple[Any, Any]]:
        """Size and stride of the dims whose size is a symbol."""
        return [each for each in self.dims if isinstance(each[0], SymInt)]

    def mask(self, period: int) -> int | None:
        """Bits of the covered bytes, modulo the period unless it is 0; None if not static."""
        static = [each for each in self.dims if not isinstance(each[0], SymInt)]
        if any(isinstance(stride, SymInt) for _, stride in static):
            return None
        offset = _modulo(self.offset, period)
        if offset is None or sum((n - 1) * step for n, step in static) + offset > _MAX_BYTES:
            return None
        bits = ((1 << self.itemsize) - 1) << offset
        for size, stride in sorted(static, key=lambda each: each[1]):
            bits = _repeat(bits, size, stride)
        return _fold(bits, period)


def may_overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two fake tensors may share a byte, for any value of their symbols."""
    if any(each.layout is not torch.strided for each in (first, second)):
        return False
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return False
    mine, theirs = _Geometry.of(first), _Geometry.of(second)
    if mine.is_empty() or theirs.is_empty():
        return False
    period = _period([stride for _, stride in mine.free_dims() + theirs.free_dims()])
    if period is None:
        return True
    masks = mine.mask(period), theirs.mask(period)
    return masks[0] is None or masks[1] is None or bool(masks[0] & masks[1])


def covers(first: Tensor, second: Tensor) -> bool:
    """Whether every byte of the second tensor is surely in the first."""
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata:
        return False
    mine, theirs = _Geometry.of(first), _Geometry.of(second)
    if not _are_equal(mine.free_dims(), theirs.free_dims()):
        return False
    # Steps along equal free dims take both from one copy of their static parts to the next.
    masks = mine.mask(0), theirs.mask(0)
    return masks[0] is not None and masks[1] is not None and not masks[1] & ~masks[0]


def _period(strides: Sequence[Any]) -> int | None:
    """Distance after which free dims come round; 0 without any, None if they cannot be compared."""
    if any(isinstance(stride, SymInt) for stride in strides):
        return None
    common = gcd(*strides)
    return None if strides and common == 0 else common


def _modulo(offset: Any, period: int) -> int | None:
    if not isinstance(offset, SymInt):
        return int(offset) % period if period else int(offset)
    return 0 if period and is_known_equal(offset % period, 0) else None


def _repeat(bits: int, count: int, stride: int) -> int:
    """The bits at each of `count` places `stride` apart, by doubling."""
    result, covered, block = 0, 0, bits
    width = 1
    while count:
        if count & 1:
            result |= block << (covered * stride)
            covered += width
        block |= block << (width * stride)
        width *= 2
        count >>= 1
    return result


def _fold(bits: int, period: int) -> int:
    """The bits modulo the period, by halving; as they are if it is 0."""
    while period and bits.bit_length() > period:
        half = max(1, bits.bit_length() // period // 2) * period
        bits = (bits & ((1 << half) - 1)) | (bits >> half)
    return bits


def _are_equal(first: Sequence[tuple[Any, Any]], second: Sequence[tuple[Any, Any]]) -> bool:
    return len(first) == len(second) and all(
        is_known_equal(mine, theirs)
        for pair in zip(first, second, strict=True)
        for mine, theirs in zip(*pair, strict=True)
    )
