"""Ops with workloads, each in a registry of its own, for tests of the suite."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ir_core.op import IrOp
from ir_core.testing import Workload, fresh_registry, workloads


def scaled_add(*, allow_inplace: bool = True) -> IrOp:
    """(x * factor + y, x - y), float32 inside, one rounding."""

    def scaled_add(
        x: Tensor, x_other: Tensor, factor: Tensor | None, power: float = 2.0
    ) -> tuple[Tensor, Tensor]:
        wide, other = x.to(torch.float64), x_other.to(torch.float64)
        scaled = wide if factor is None else wide * factor.to(torch.float64)
        return (scaled + other * power).to(x.dtype), (wide - other).to(x.dtype)

    op = fresh_registry().register_op(allow_inplace=allow_inplace, batch_invariant=True)(scaled_add)

    @op.register_input_generator
    @workloads(
        Workload("wide", "more than one vector", {"num_tokens": 9, "width": 40}, 0.05),
        Workload("no-factor", "an absent tensor", {"num_tokens": 3, "with_factor": False}),
    )
    def generate(
        num_tokens: int,
        dtype: torch.dtype,
        *,
        width: int = 5,
        with_factor: bool = True,
        seed: int = 0,
    ) -> tuple[Any, ...]:
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(num_tokens, width, generator=random)
        other = torch.randn(num_tokens, width, generator=random)
        factor = torch.rand(width, generator=torch.Generator().manual_seed(1)) + 0.5
        return x.to(dtype), other.to(dtype), factor.to(dtype) if with_factor else None

    return op


def projection(
    pack: Callable[..., Any] | None = None, unpack: Callable[..., Any] | None = None
) -> IrOp:
    """x @ weight.T; in layout `upside_down` the rows of the weight are reversed, or as told."""

    def projection(x: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
        return torch.nn.functional.linear(x, weight)

    op = fresh_registry().register_op(weights=("weight",))(projection)

    def reverse(weight: Tensor) -> tuple[Tensor]:
        return (weight.flip(0),)

    op.register_layout("upside_down", pack=pack or reverse, unpack=unpack or reverse)

    @op.register_input_generator
    @workloads(Workload("rows", "more rows than one", {"num_tokens": 3, "rows": 5}))
    def generate(
        num_tokens: int, dtype: torch.dtype, *, rows: int = 4, seed: int = 0
    ) -> tuple[Any, ...]:
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(num_tokens, 8, generator=random).to(dtype)
        return x, torch.randn(rows, 8, generator=random).to(dtype)

    return op
