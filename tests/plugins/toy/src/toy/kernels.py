"""Implementations by the provider `toy`: of `rms_norm`, and of this distribution's own op."""

import torch
from torch import Tensor

import ir_core as ir


def register() -> None:
    """Register every implementation of this distribution."""
    ir.ops.rms_norm.register_impl("toy", supports_args=_supports_rms_norm)(rms_norm)
    ir.registry()["toy_blend"].register_impl("toy")(toy_blend)


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Norm by a dot product of each row with itself."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    squares = torch.linalg.vecdot(wide, wide).unsqueeze(-1) / x.shape[-1]
    normal = wide * torch.rsqrt(squares + epsilon)
    if weight is None:
        return normal.to(x.dtype)
    return (normal.to(weight.dtype) * weight).to(x.dtype)


def toy_blend(x: Tensor, x_other: Tensor, share: float = 0.5) -> Tensor:
    """Blend by one fused multiply and add."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.add(x_other.to(wide) * (1 - share), x.to(wide), alpha=share).to(x.dtype)


def _supports_rms_norm(x, weight, epsilon, variance_size=None):  # type: ignore[no-untyped-def]
    return variance_size is None or "toy measures whole rows"
