"""`all_gather` over a torch process group of backend NCCL, on CUDA devices."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments
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
    )(all_gather)


def supports_args(x: Tensor, num_tokens: int, group: str = "tp") -> bool | str:
    """Several ranks with a process group, and floats or quantised activations on cuda."""
    return refusal(x, group, "nccl", "cuda", arguments.CARRIED) or True


def all_gather(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    """All ranks' rows, without the padding behind them.

    Ranks that bring different shapes are not told apart: a check would wait for the device.
    """
    return process_group.first_rows(
        process_group.gathered("all_gather", "nccl", x, group), num_tokens
    )
