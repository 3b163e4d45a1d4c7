"""`silu_and_mul_quantize_int8_per_token` in C++: csrc/int8_rows.inc."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        batch_invariant=True,
    )(silu_and_mul_quantize_int8_per_token)


def supports_args(x: Tensor) -> bool | str:
    """Any layout."""
    return arguments.activation(x, "cpu") or True


def silu_and_mul_quantize_int8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """The activated row stays in the cache."""
    return kernels.silu_and_mul_quantize_int8_per_token.default(x)
