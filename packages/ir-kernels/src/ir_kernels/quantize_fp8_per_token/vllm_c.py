"""`quantize_fp8_per_token` in CUDA C++: csrc/cuda/quantize.cu."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import cuda_library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`, which has no kernel for the CPU."""
    op.register_impl(
        "vllm_c",
        supported=cuda_library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(quantize_fp8_per_token)


def supports_args(x: Tensor) -> bool | str:
    """Any layout, on a GPU."""
    return cuda_library.on_gpu(x) or True


def quantize_fp8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """One pass for the largest magnitude and one for the output, row by row."""
    return kernels.quantize_fp8_per_token.default(x)
