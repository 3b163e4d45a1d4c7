"""`silu_and_mul` by vllm-xpu-kernels (SYCL)."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, xpu_library


def register(op: IrOp) -> None:
    """Register provider `xpu_kernels`."""
    op.register_impl(
        "xpu_kernels", supported=xpu_library.availability, supports_args=supports_args
    )(silu_and_mul)


def supports_args(x: Tensor) -> bool | str:
    """Any float that the library has."""
    return arguments.activation(x, "xpu") or True


def silu_and_mul(x: Tensor) -> Tensor:
    """The library writes into a contiguous output."""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    xpu_library.kernels.silu_and_mul(out, x.contiguous())
    return out
