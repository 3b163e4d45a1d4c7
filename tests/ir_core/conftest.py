"""Fresh registries and two small ops, so that no test touches the default registry."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ir_core import IrOp, Platform, Registry


class NoPreference(Platform):
    """A platform without defaults: selections depend on the test's own lists alone."""

    name = "test"


@pytest.fixture
def registry() -> Registry:
    return Registry(platform=NoPreference())


@pytest.fixture
def scale(registry: Registry) -> IrOp:
    """`x * weight * factor` over the first `width` columns; weight and width are optional."""

    @registry.register_op
    def scale(x: Tensor, weight: Tensor | None, factor: float, width: int | None = None) -> Tensor:
        """Scale columns."""
        result = x[..., :width] * factor
        return result if weight is None else result * weight[:width]

    return scale


@pytest.fixture
def add_twice(registry: Registry) -> IrOp:
    """`(x + x_other, x + 2 * x_other)`, with `maybe_inplace`."""

    @registry.register_op(allow_inplace=True)
    def add_twice(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Add once and twice."""
        return (x + x_other) * factor, (x + 2 * x_other) * factor

    return add_twice


@pytest.fixture
def writing(add_twice: IrOp) -> IrOp:
    """`add_twice` with an implementation `writer` that returns its own inputs."""

    @add_twice.register_impl("writer", inplace=True)
    def writer(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        x += x_other
        x_other += x
        return x.mul_(factor), x_other.mul_(factor)

    return add_twice


@pytest.fixture
def add_scale(scale: IrOp) -> Callable[..., None]:
    """Register an implementation of `scale` under a name, with the keywords of `register_impl`."""

    def add(provider: str, result: float = 0.0, **options: object) -> None:
        @scale.register_impl(provider, **options)  # type: ignore[arg-type]
        def implementation(
            x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
        ) -> Tensor:
            return torch.full_like(x, result)

    return add


@pytest.fixture
def project(registry: Registry) -> IrOp:
    """`x @ weight.T + bias`; in its layout `upside_down` the rows of both weights are reversed."""

    @registry.register_op(weights=("weight", "bias"))
    def project(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
    ) -> Tensor:
        """Project rows."""
        result = x @ weight.T
        return result if bias is None else result + bias

    def reverse(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return weight.flip(0), None if bias is None else bias.flip(0)

    project.register_layout("upside_down", pack=reverse, unpack=reverse)
    return project


@pytest.fixture
def add_project(project: IrOp) -> Callable[..., None]:
    """Register an implementation of `project` that gives `result`, by name and options."""

    def add(provider: str, result: float = 0.0, **options: object) -> None:
        @project.register_impl(provider, **options)  # type: ignore[arg-type]
        def implementation(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
        ) -> Tensor:
            return x.new_full((*x.shape[:-1], weight.shape[0]), result)

    return add
