"""`silu_and_mul` in C++: csrc/silu.inc; on CUDA devices csrc/cuda/silu.cu."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import cuda_library, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(silu_and_mul)


def supports_args(x: Tensor) -> bool | str:
    """Any layout."""
    return cuda_library.activation(x) or True


def silu_and_mul(x: Tensor) -> Tensor:
    """One pass; float32 inside. On the CPU with an exp of its own that is exact to 2 ulp."""
    return kernels.silu_and_mul.default(x)
