"""Distance between floats in units in the last place."""

import torch
from torch import Tensor

_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def max_ulp(got: Tensor, expected: Tensor) -> int:
    """Greatest number of representable values between two tensors of one dtype; NaN equals NaN."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(got.isnan(), expected.isnan())
    keep = ~got.isnan()
    distance = (_ordered(got)[keep] - _ordered(expected)[keep]).abs()
    return int(distance.max()) if distance.numel() else 0


def _ordered(x: Tensor) -> Tensor:
    """Integers in the order of the floats, both zeros at 0."""
    bits = x.contiguous().view(_INTEGERS[x.dtype]).long()
    magnitude = bits & (2 ** (8 * x.itemsize - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)
