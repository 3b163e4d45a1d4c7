"""`all_reduce_add_rms_norm` over shared memory, in C++: csrc/shm_all_reduce_norm.cpp."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import library
from ir_kernels.all_reduce.transport import failures, segment_of
from ir_kernels.all_reduce_add_rms_norm.operands import refusal
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `shm`."""
    op.register_impl(
        "shm",
        supported=library.availability,
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
    """Several ranks with a segment, floats on the CPU, and what the C++ norm accepts."""
    return refusal(x, x_residual, weight, group, "shm", "cpu") or True


def all_reduce_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    group: str = "tp",
) -> tuple[Tensor, Tensor]:
    """The bits of `all_reduce` by `shm` and then `fused_add_rms_norm` by `vllm_c`."""
    handle = segment_of(group)
    with failures("all_reduce_add_rms_norm", "shm", group):
        return kernels.shm_all_reduce_add_rms_norm.default(
            handle, x, x_residual, weight, epsilon, variance_size
        )
