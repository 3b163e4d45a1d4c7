"""`all_gather` over shared memory, in C++: csrc/shm_collectives.cpp."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
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
    )(all_gather)


def supports_args(x: Tensor, num_tokens: int, group: str = "tp") -> bool | str:
    """Several ranks with a segment, and floats or quantised activations on the CPU."""
    return refusal(x, group, "shm", "cpu", arguments.CARRIED) or True


def all_gather(x: Tensor, num_tokens: int, group: str = "tp") -> Tensor:
    """Each rank copies what it finds in all ranks' slots."""
    handle = segment_of(group)
    with failures("all_gather", "shm", group):
        return kernels.shm_all_gather.default(handle, x, num_tokens)
