"""`all_reduce` over a torch process group of backend NCCL, on CUDA devices."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels.all_reduce import process_group
from ir_kernels.all_reduce.transport import refusal


def register(op: IrOp) -> None:
    """Register provider `nccl`."""
    op.register_impl(
        "nccl",
        supported=process_group.has_nccl,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(all_reduce)


def supports_args(x: Tensor, group: str = "tp") -> bool | str:
    """Several ranks with a process group, and floats on cuda."""
    return refusal(x, group, "nccl", "cuda") or True


def all_reduce(x: Tensor, group: str = "tp") -> Tensor:
    """All ranks' values, summed here.

    Ranks that bring different shapes are not told apart: a check would wait for the device.
    """
    return process_group.sum_in_order(process_group.gathered("all_reduce", "nccl", x, group))
