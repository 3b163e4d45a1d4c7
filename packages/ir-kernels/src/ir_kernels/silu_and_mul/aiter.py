"""`silu_and_mul` by AMD's AITER library."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import aiter_library, arguments


def register(op: IrOp) -> None:
    """Register provider `aiter`."""
    op.register_impl("aiter", supported=aiter_library.availability, supports_args=supports_args)(
        silu_and_mul
    )


def supports_args(x: Tensor) -> bool | str:
    """16-bit activations."""
    return arguments.activation(x, "cuda", arguments.HALVES) or True


def silu_and_mul(x: Tensor) -> Tensor:
    """The library writes into a contiguous output."""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
    aiter_library.kernels().silu_and_mul(out, x.contiguous())
    return out
