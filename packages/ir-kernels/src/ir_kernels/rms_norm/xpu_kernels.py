"""`rms_norm` by vllm-xpu-kernels (SYCL)."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, xpu_library


def register(op: IrOp) -> None:
    """Register provider `xpu_kernels`."""
    op.register_impl(
        "xpu_kernels", supported=xpu_library.availability, supports_args=supports_args
    )(rms_norm)


def supports_args(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """A weight of x's dtype."""
    return (
        arguments.activation(x, "xpu")
        or arguments.plain_norm(weight, variance_size)
        or arguments.norm_weight(x, weight)
        or True
    )


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """The library takes rows and writes into a contiguous output."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    xpu_library.kernels.rms_norm(out, rows, weight, epsilon)
    return out.view(x.shape)
