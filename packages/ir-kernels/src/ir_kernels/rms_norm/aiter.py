"""`rms_norm` by AMD's AITER library."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import aiter_library, arguments


def register(op: IrOp) -> None:
    """Register provider `aiter`."""
    op.register_impl("aiter", supported=aiter_library.availability, supports_args=supports_args)(
        rms_norm
    )


def supports_args(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | str:
    """16-bit x with a weight of its dtype."""
    return (
        arguments.activation(x, "cuda", arguments.HALVES)
        or arguments.plain_norm(weight, variance_size)
        or arguments.norm_weight(x, weight)
        or True
    )


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """The library takes rows; its T5 mode rounds before the product, as the op does."""
    rows = x.reshape(-1, x.shape[-1])
    return (
        aiter_library.kernels()
        .rms_norm(rows, weight, epsilon, use_model_sensitive_rmsnorm=1)
        .view(x.shape)
    )
