"""`all_gather` over a torch process group of backend gloo, on the CPU."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments
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
    )(all_gather)


def supports_args(x: Tensor, num_tokens: int, group: str = "tp") -> bool | str:
    """Several ranks with a process group, and floats or quantised activations on cpu."""
    return refusal(x, group, "gloo", "cpu", arguments.CARRIED) or True


def all_gather(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    """All ranks' rows, without the padding behind them."""
    return process_group.first_rows(
        process_group.gathered_alike("all_gather", "gloo", x, group, num_tokens), num_tokens
    )
