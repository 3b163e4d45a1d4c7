from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import IrOp
from ir_core.autotuning.agreement import disagreement

X, WEIGHT = torch.linspace(1, 2, 8).reshape(2, 4), torch.ones(4)


def off_by(relative: float) -> Callable[[Tensor], Tensor]:
    return lambda result: result * (1 + relative)


def raising(result: Tensor) -> Tensor:
    raise RuntimeError("no such unit")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (off_by(0.0), None),
        (off_by(2e-6), None),
        (off_by(1e-3), "differs from native: worst at index"),
        (lambda result: result.double(), "gives other shapes or dtypes"),
        (lambda result: result[:1], "gives other shapes or dtypes"),
        (lambda result: result * torch.nan, "differs from native"),
        (raising, "raised RuntimeError: no such unit"),
    ],
)
def test_results_are_compared_with_natives(
    scale: IrOp, spoil: Callable[[Tensor], Tensor], said: str | None
) -> None:
    @scale.register_impl("other")
    def other(x: Tensor, weight: Tensor | None, factor: float, width: int | None = None) -> Tensor:
        return spoil(x * factor)

    found = disagreement(other, (X, WEIGHT, 2.0, None))
    assert found is None if said is None else str(found).startswith(said)


def test_an_in_place_one_agrees_and_spoils_nothing(writing: IrOp) -> None:
    values: tuple[Any, ...] = (X.clone(), X.clone(), 1.0)
    assert disagreement(writing.implementations["writer"], values) is None
    assert torch.equal(values[0], X)


def test_every_result_is_compared(add_twice: IrOp) -> None:
    @add_twice.register_impl("other")
    def other(x: Tensor, x_other: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        return (x + x_other) * factor, (x + 3 * x_other) * factor

    assert "differs from native" in str(disagreement(other, (X, X.clone(), 1.0)))


def test_packed_weights_are_compared_as_they_lie(project: IrOp) -> None:
    @project.register_impl("flipped", layouts=("upside_down",))
    def flipped(
        x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
    ) -> Tensor:
        return x @ weight.flip(0).T

    call = (X, torch.arange(12.0).reshape(3, 4), None, "plain")
    assert disagreement(flipped, project.pack(call, "upside_down")) is None
