"""`fused_add_rms_norm` by AMD's AITER library."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import aiter_library, arguments


def register(op: IrOp) -> None:
    """Register provider `aiter`."""
    op.register_impl("aiter", supported=aiter_library.availability, supports_args=supports_args)(
        fused_add_rms_norm
    )


def supports_args(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool | str:
    """16-bit activations with a weight of their dtype."""
    return (
        arguments.activation(x, "cuda", arguments.HALVES)
        or arguments.same_dtype(x, x_residual, "x_residual")
        or arguments.plain_norm(weight, variance_size)
        or arguments.norm_weight(x, weight)
        or True
    )


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Out of place, into fresh outputs; T5 mode rounds before the product, as the op does."""
    rows, residual = (each.reshape(-1, x.shape[-1]).contiguous() for each in (x, x_residual))
    out, total = torch.empty_like(rows), torch.empty_like(rows)
    aiter_library.kernels().rmsnorm2d_fwd_with_add(
        out, rows, residual, total, weight, epsilon, use_model_sensitive_rmsnorm=1
    )
    return out.view(x.shape), total.view(x.shape)
