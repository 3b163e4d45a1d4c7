"""Whether a provider can take the operands of a sum, residual add and norm."""

from torch import Tensor, float32

from ir_kernels import arguments
from ir_kernels.all_reduce import transport


def refusal(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, group: str, provider: str, device: str
) -> str:
    """Why a provider has no part in this call, asked of argument views; "" if it has."""
    return (
        transport.refusal(x, group, provider, device)
        or arguments.same_dtype(x, x_residual, "x_residual")
        or arguments.norm_weight(x, weight, (float32,))
    )
