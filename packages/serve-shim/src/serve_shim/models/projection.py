"""Owns a linear layer's parameters for inference; refuses to train."""

import torch
from torch import Tensor, nn

import ir_core as ir


def frozen(*shape: int, dtype: torch.dtype, device: torch.device | None) -> nn.Parameter:
    """Return an uninitialised parameter that never requires a gradient."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device=device), requires_grad=False)


class Projection(nn.Module):
    """`x @ weight.T + bias` through the IR's `linear`; the weight is uninitialised until loaded."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.weight = frozen(out_features, in_features, dtype=dtype, device=device)
        self.bias = frozen(out_features, dtype=dtype, device=device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features] in x's dtype."""
        return ir.ops.linear(x, self.weight, self.bias)
