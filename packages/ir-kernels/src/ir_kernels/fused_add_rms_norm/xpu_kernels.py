"""`fused_add_rms_norm` by vllm-xpu-kernels (SYCL)."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, xpu_library


def register(op: IrOp) -> None:
    """Register provider `xpu_kernels`."""
    op.register_impl(
        "xpu_kernels", supported=xpu_library.availability, supports_args=supports_args, inplace=True
    )(fused_add_rms_norm)


def supports_args(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool | str:
    """Activations and weight of one dtype."""
    return (
        arguments.activation(x, "xpu")
        or arguments.same_dtype(x, x_residual, "x_residual")
        or arguments.plain_norm(weight, variance_size)
        or arguments.norm_weight(x, weight)
        or True
    )


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """In place where the layout allows it: the library wants contiguous rows."""
    rows, residual = (each.reshape(-1, x.shape[-1]).contiguous() for each in (x, x_residual))
    xpu_library.kernels.fused_add_rms_norm(rows, residual, weight, epsilon)
    return rows.view(x.shape), residual.view(x.shape)
