"""Owns a norm's weight and its two uses, alone and after adding the residual."""

from torch import Tensor, nn

import ir_core as ir
from serve_shim.models.parameters import ParameterMaker


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dim of size `size`."""

    def __init__(self, size: int, epsilon: float, make: ParameterMaker) -> None:
        super().__init__()
        self.weight = make.vector(size)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., size]; the result does not alias x."""
        return ir.ops.rms_norm(x, self.weight, self.epsilon)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return (norm of x + residual, x + residual); both arguments are donated."""
        return ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.weight, self.epsilon)
