"""`silu_and_mul` in Triton: triton_kernels/activation.py."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(silu_and_mul)


def supports_args(x: Tensor) -> bool | str:
    """Any layout."""
    return arguments.activation(x, triton_kernels.device_type()) or True


def silu_and_mul(x: Tensor) -> Tensor:
    """One pass, float32 inside."""
    return run(x, "silu")


def run(x: Tensor, formula: str) -> Tensor:
    """Launch the kernel for `silu`, `gelu` or `gelu_tanh` on the rows of x."""
    from ir_kernels.triton_kernels import activation  # noqa: PLC0415

    size = x.shape[-1] // 2
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    block = min(1024, triton_kernels.next_power_of_2(max(1, size)))
    rows_each = 1024 // block
    triton_kernels.launch(
        activation.gate_rows,
        (-(-rows.shape[0] // rows_each), -(-size // block)),
        rows,
        out,
        rows.shape[0],
        *rows.stride(),
        SIZE=size,
        FORMULA=formula,
        ROWS=rows_each,
        BLOCK=block,
    )
    return out
