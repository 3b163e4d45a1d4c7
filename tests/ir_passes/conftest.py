"""A small registry of its own: ops that give one or two results, one that writes and splits."""

from dataclasses import dataclass

import pytest
from torch import Tensor

from ir_core import IrOp, Registry
from ir_passes.dialect import Dialect

from .kernel_toy import Kernels, NoPreference, make_kernels


@dataclass(frozen=True)
class Toy:
    """The ops `scale`, `halves`, `merge` and `store`, and their dialect."""

    dialect: Dialect
    scale: IrOp
    halves: IrOp
    merge: IrOp
    store: IrOp


@pytest.fixture(scope="session")
def toy() -> Toy:
    registry = Registry(platform=NoPreference())

    @registry.register_op
    def scale(x: Tensor, weight: Tensor | None = None, factor: float = 2.0) -> Tensor:
        """Multiply by a number and by a weight."""
        return x * factor if weight is None else x * factor * weight

    @registry.register_op
    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        """Halve, and halve again."""
        return x / 2, x / 4

    @registry.register_op(allow_inplace=True)
    def merge(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """A scaled sum and a difference."""
        return (x + x_other) * factor, x - x_other

    @registry.register_op(mutates=("cache",), splits=True, opaque=True)
    def store(x: Tensor, cache: Tensor) -> None:
        """Add to a cache."""
        cache += x

    @store.register_fake
    def _store_fake(x: Tensor, cache: Tensor) -> None:
        """Writes nothing."""

    return Toy(Dialect(registry), scale, halves, merge, store)


@pytest.fixture
def kernels() -> Kernels:
    return make_kernels()
