"""A model that one process traces and another one looks at."""

import torch
from torch import Tensor, nn


class Guarded(nn.Module):
    """Adds a constant and multiplies with a weight."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.eps) * self.weight


def example() -> tuple[Tensor]:
    return (torch.ones(3, 4),)
