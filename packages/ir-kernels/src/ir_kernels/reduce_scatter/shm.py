"""`reduce_scatter` over shared memory, in C++: csrc/shm_collectives.cpp."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import library
from ir_kernels.all_reduce.transport import failures, refusal, segment_of
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `shm`."""
    op.register_impl(
        "shm",
        supported=library.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(reduce_scatter)


def supports_args(x: Tensor, group: str = "tp") -> bool | str:
    """Several ranks with a segment, and floats on the CPU."""
    return refusal(x, group, "shm", "cpu") or True


def reduce_scatter(x: Tensor, group: str = "tp") -> Tensor:
    """Each rank finds its own rows in all ranks' slots."""
    handle = segment_of(group)
    with failures("reduce_scatter", "shm", group):
        return kernels.shm_reduce_scatter.default(handle, x)
