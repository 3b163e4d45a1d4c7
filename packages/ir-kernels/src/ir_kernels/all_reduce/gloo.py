"""`all_reduce` over a torch process group of backend gloo, on the CPU."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels.all_reduce import process_group
from ir_kernels.all_reduce.transport import refusal


def register(op: IrOp) -> None:
    """Register provider `gloo`."""
    op.register_impl(
        "gloo",
        supported=process_group.has_gloo,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(all_reduce)


def supports_args(x: Tensor, group: str = "tp") -> bool | str:
    """Several ranks with a process group, and floats on cpu."""
    return refusal(x, group, "gloo", "cpu") or True


def all_reduce(x: Tensor, group: str = "tp") -> Tensor:
    """All ranks' values, summed here."""
    return process_group.sum_in_order(process_group.gathered_alike("all_reduce", "gloo", x, group))
