"""`rms_norm_quantize_int8_per_token` in C++: csrc/int8_rows.inc."""

from torch import Tensor, float32

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
    )(rms_norm_quantize_int8_per_token)


def supports_args(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """What `rms_norm` accepts."""
    return arguments.activation(x, "cpu") or arguments.norm_weight(x, weight, (float32,)) or True


def rms_norm_quantize_int8_per_token(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The normalised row stays in the cache."""
    return kernels.rms_norm_quantize_int8_per_token.default(x, weight, epsilon, variance_size)
