"""`all_reduce_add_rms_norm` over a torch process group of backend NCCL, on CUDA devices."""

from torch import Tensor

import ir_core as ir
from ir_core import IrOp
from ir_kernels.all_reduce import process_group
from ir_kernels.all_reduce.nccl import all_reduce
from ir_kernels.all_reduce_add_rms_norm.operands import refusal


def register(op: IrOp) -> None:
    """Register provider `nccl`."""
    op.register_impl(
        "nccl",
        supported=process_group.has_nccl,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(all_reduce_add_rms_norm)


def supports_args(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    group: str = "tp",
) -> bool | str:
    """Several ranks with a process group, and floats on cuda with a weight that fits."""
    return refusal(x, x_residual, weight, group, "nccl", "cuda") or True


def all_reduce_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    group: str = "tp",
) -> tuple[Tensor, Tensor]:
    """The two ops one after the other, the norm natively."""
    total = all_reduce(x, group)
    return ir.ops.fused_add_rms_norm.native(total, x_residual, weight, epsilon, variance_size)
