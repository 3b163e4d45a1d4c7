"""`rms_norm` in C++: csrc/norm.inc; on CUDA devices csrc/cuda/norm.cu."""

from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, cuda_library, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(rms_norm)


def supports_args(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """Any layout; a float32 weight beside a 16-bit x too."""
    return (
        cuda_library.activation(x, weight=weight)
        or arguments.norm_weight(x, weight, (float32,))
        or True
    )


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """One pass for the statistics and one for the output, row by row."""
    return kernels.rms_norm.default(x, weight, epsilon, variance_size)
