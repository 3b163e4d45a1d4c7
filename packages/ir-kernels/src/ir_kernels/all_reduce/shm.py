"""`all_reduce` over shared memory, in C++: csrc/shm_collectives.cpp."""

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
    )(all_reduce)


def supports_args(x: Tensor, group: str = "tp") -> bool | str:
    """Several ranks with a segment, and floats on the CPU."""
    return refusal(x, group, "shm", "cpu") or True


def all_reduce(x: Tensor, group: str = "tp") -> Tensor:
    """Each rank sums what it finds in all ranks' slots; large tensors in shares."""
    handle = segment_of(group)
    with failures("all_reduce", "shm", group):
        return kernels.shm_all_reduce.default(handle, x)
