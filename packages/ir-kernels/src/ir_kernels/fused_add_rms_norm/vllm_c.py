"""`fused_add_rms_norm` in C++, in place: csrc/norm.inc; on CUDA devices csrc/cuda/norm.cu."""

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
        inplace=True,
        batch_invariant=True,
    )(fused_add_rms_norm)


def supports_args(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool | str:
    """What `rms_norm` accepts, with a residual of x's dtype."""
    return (
        cuda_library.activation(x, x_residual=x_residual, weight=weight)
        or arguments.same_dtype(x, x_residual, "x_residual")
        or arguments.norm_weight(x, weight, (float32,))
        or True
    )


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum goes into `x_residual`, its norm into `x`."""
    kernels.fused_add_rms_norm.default(x, x_residual, weight, epsilon, variance_size)
    return x, x_residual
