"""Ops with implementations of every kind, good and bad, in a registry of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ir_core import IrOp, Platform, Registry
from ir_passes.dialect import Dialect


class NoPreference(Platform):
    """A platform without defaults."""

    name = "test"


@dataclass(frozen=True)
class Kernels:
    """The ops `scale`, `merge` (in place if it may) and `store` (splits), and their dialect."""

    registry: Registry
    dialect: Dialect
    scale: IrOp
    merge: IrOp
    store: IrOp

    def prefer(self, **providers: Sequence[str]) -> None:
        """Set the priorities of ops."""
        self.registry.priorities.set(providers)


def make_kernels() -> Kernels:
    """A fresh registry with all of them."""
    registry = Registry(platform=NoPreference())

    @registry.register_op
    def scale(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        """Multiply by a number and by a weight."""
        return x * factor if weight is None else x * factor * weight

    @registry.register_op(allow_inplace=True)
    def merge(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """A scaled sum and a difference, both contiguous."""
        left, right = x.contiguous(), x_other.contiguous()
        return (left + right) * factor, left - right

    @registry.register_op(mutates=("cache",), splits=True, opaque=True)
    def store(x: Tensor, cache: Tensor) -> None:
        """Add the first row to a cache."""
        cache += x[:1].sum(0)

    @store.register_fake
    def _store_fake(x: Tensor, cache: Tensor) -> None:
        """Writes nothing."""

    _register_good(scale, merge)
    _register_bad(scale)
    return Kernels(registry, Dialect(registry), scale, merge, store)


def _register_good(scale: IrOp, merge: IrOp) -> None:
    def wants_two(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> bool | str:
        return factor == 2.0 or "wants a factor of 2"

    @scale.register_impl("picky", supports_args=wants_two)
    def picky(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x + x

    @scale.register_impl("twice")
    def twice(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * factor if weight is None else weight * (x * factor)

    @scale.register_impl("opaque", opaque=True)
    def opaque(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * factor if x.shape[0] > 2 else x + x * (factor - 1)

    @scale.register_impl("table")
    def table(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * torch.tensor([factor] * 8)

    @merge.register_impl("inplace", inplace=True)
    def inplace(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        total = (x + x_other) * factor
        x_other.mul_(-1).add_(x)
        x.copy_(total)
        return x, x_other


def _register_bad(scale: IrOp) -> None:
    @scale.register_impl("wrong_shape")
    def wrong_shape(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x[:, 1:] * factor

    @scale.register_impl("wrong_dtype")
    def wrong_dtype(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x.double() * factor

    @scale.register_impl("wrong_strides")
    def wrong_strides(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return (x * factor).t().contiguous().t()

    @scale.register_impl("aliasing")
    def aliasing(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x

    @scale.register_impl("branching")
    def branching(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return x * factor if x.sum() > 0 else x * 1
