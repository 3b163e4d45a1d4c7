"""An op whose implementations cost what a test says, on a clock that stands still otherwise."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ir_core import IrOp, Platform, Registry

Price = Callable[[int], float]
"""Seconds of one call on so many tokens; it may raise."""


class Clock:
    """Seconds that pass only while a priced implementation runs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_calls = 0
        self.prices: dict[str, Price] = {}

    def __call__(self) -> float:
        return self.seconds

    def reset(self, **prices: float | Price) -> None:
        """Start anew, with a price for each provider; a number is one for any number of tokens."""
        self.num_calls = 0
        self.prices = {
            name: each if callable(each) else lambda _, each=each: each
            for name, each in prices.items()
        }

    def spend(self, provider: str, x: Tensor) -> None:
        """Let the price of one call pass."""
        self.num_calls += 1
        self.seconds += self.prices.get(provider, lambda _: 1e-5)(len(x))


CLOCK = Clock()


class SteadyFirst(Platform):
    """Prefers provider `steady`."""

    name = "test"

    def get_default_ir_op_priority(self) -> dict[str, tuple[str, ...]]:
        return {"scale": ("steady",)}


def scale(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    """Scale columns."""
    CLOCK.spend("native", x)
    return x * weight * factor


def steady(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    CLOCK.spend("steady", x)
    return x * weight * factor


def rival(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    CLOCK.spend("rival", x)
    return x * weight * factor


def priced_registry(**rival_options: Any) -> Registry:
    """A registry with the op `scale`: `steady` is preferred, and `rival` in no priority."""
    registry = Registry(platform=SteadyFirst())
    op = registry.register_op(scale)
    op.register_impl("steady")(steady)
    op.register_impl("rival", **rival_options)(rival)
    return registry


def priced_step(op: IrOp, width: int = 4) -> Callable[[int], object]:
    """A model's step: two layers, each with a weight of its own."""
    weights = [torch.full((width,), float(layer + 1)) for layer in range(2)]

    def step(num_tokens: int) -> None:
        x = torch.ones(num_tokens, width)
        for weight in weights:
            x = op(x, weight)

    return step
