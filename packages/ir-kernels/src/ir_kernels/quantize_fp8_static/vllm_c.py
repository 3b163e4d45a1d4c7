"""`quantize_fp8_static` in CUDA C++: csrc/cuda/quantize.cu."""

from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, cuda_library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`, which has no kernel for the CPU."""
    op.register_impl(
        "vllm_c",
        supported=cuda_library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(quantize_fp8_static)


def supports_args(x: Tensor, scale: Tensor) -> bool | str:
    """Any layout, on a GPU, with its scale there too."""
    if scale.dtype != float32:
        return f"needs a float32 `scale`, not {arguments.name(scale.dtype)}"
    return cuda_library.on_gpu(x, scale=scale) or True


def quantize_fp8_static(x: Tensor, scale: Tensor) -> Tensor:
    """One pass; the scale is read on the device."""
    return kernels.quantize_fp8_static.default(x, scale)
