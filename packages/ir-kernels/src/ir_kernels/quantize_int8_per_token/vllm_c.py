"""`quantize_int8_per_token` in C++: csrc/int8_rows.inc; on CUDA csrc/cuda/quantize.cu."""

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
    )(quantize_int8_per_token)


def supports_args(x: Tensor) -> bool | str:
    """Any layout."""
    return cuda_library.activation(x) or True


def quantize_int8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """One pass for the largest magnitude and one for the output, row by row."""
    return kernels.quantize_int8_per_token.default(x)
