"""`rms_norm` in Triton: triton_kernels/norm.py."""

import torch
from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels

MAX_SIZE = 1 << 15
"""The widest row that a program's registers hold."""


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(rms_norm)


def supports_args(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """Any layout, in rows of up to 32768; a float32 weight beside a 16-bit x too."""
    return (
        arguments.activation(x, triton_kernels.device_type())
        or arguments.one_device(x, weight=weight)
        or arguments.norm_weight(x, weight, (float32,))
        or arguments.at_most(MAX_SIZE, "elements in a row", x.shape[-1])
        or True
    )


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """One pass: a program holds whole rows."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    run(x, None, weight, out, None, epsilon, variance_size)
    return out


def run(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    out: Tensor,
    total: Tensor | None,
    epsilon: float,
    variance_size: int | None,
) -> None:
    """Launch the kernel on the rows of x; with a residual, its sum with x goes into `total`."""
    from ir_kernels.triton_kernels import norm  # noqa: PLC0415

    size = x.shape[-1]
    rows = x.reshape(x.shape[:-1].numel(), size)
    others = rows if residual is None else residual.reshape(rows.shape)
    block = triton_kernels.next_power_of_2(max(1, size))
    rows_each = max(1, 1024 // block)
    triton_kernels.launch(
        norm.norm_rows,
        (-(-rows.shape[0] // rows_each),),
        rows,
        None if residual is None else others,
        weight,
        out,
        total,
        rows.shape[0],
        *rows.stride(),
        *others.stride(),
        0 if weight is None else weight.stride(0),
        epsilon,
        SIZE=size,
        VARIANCE_SIZE=size if variance_size is None else variance_size,
        ROWS=rows_each,
        BLOCK=block,
        num_warps=min(16, max(4, block // 1024)),
    )
