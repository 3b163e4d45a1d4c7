"""`fused_add_rms_norm` in Triton: triton_kernels/norm.py, with a residual."""

import torch
from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels
from ir_kernels.rms_norm.triton import MAX_SIZE, run


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(fused_add_rms_norm)


def supports_args(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool | str:
    """What `rms_norm` accepts, with a residual of x's dtype."""
    return (
        arguments.activation(x, triton_kernels.device_type())
        or arguments.one_device(x, x_residual=x_residual, weight=weight)
        or arguments.same_dtype(x, x_residual, "x_residual")
        or arguments.norm_weight(x, weight, (float32,))
        or arguments.at_most(MAX_SIZE, "elements in a row", x.shape[-1])
        or True
    )


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Out of place: it moves as many bytes as in place would, and nothing has to be cloned."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(out)
    run(x, x_residual, weight, out, total, epsilon, variance_size)
    return out, total
