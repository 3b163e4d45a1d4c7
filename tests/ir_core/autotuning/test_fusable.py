from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import IrOp, Registry
from ir_core.autotuning.fusable import is_fusable


@pytest.fixture
def op(registry: Registry) -> IrOp:
    @registry.register_op
    def scale(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    return scale


VALUES = (torch.ones(2, 2), torch.ones(2, 2))


def product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x.view(2, 2), weight)


def product_and_activation(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight).relu()


def only_memory(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


def raising(x: Tensor, weight: Tensor) -> Tensor:
    raise RuntimeError("no such unit")


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(product, False), (product_and_activation, True), (only_memory, False), (raising, False)],
)
def test_loops_are_fused_and_products_are_not(
    op: IrOp, fn: Callable[..., Tensor], expected: bool
) -> None:
    assert is_fusable(op.register_impl("other")(fn), VALUES) is expected


def test_native_loops_are_fused(op: IrOp) -> None:
    assert is_fusable(op.native, VALUES)


def test_an_opaque_one_is_not_run_at_all(op: IrOp) -> None:
    called: list[Any] = []

    def opaque(x: Tensor, weight: Tensor) -> Tensor:
        called.append(x)
        return x * weight

    assert not is_fusable(op.register_impl("other", opaque=True)(opaque), VALUES)
    assert not called


def test_a_kernel_below_an_op_of_its_own_is_not_fused(op: IrOp) -> None:
    kernels = Registry()

    @kernels.register_op
    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    assert not is_fusable(op.register_impl("other")(lambda_of(kernel.torch_op)), VALUES)


def lambda_of(torch_op: Any) -> Callable[..., Tensor]:
    def call(x: Tensor, weight: Tensor) -> Tensor:
        return torch_op(x, weight)

    return call


def test_arguments_are_not_spoiled(add_twice: IrOp, writing: IrOp) -> None:
    x = torch.ones(2)
    is_fusable(writing.implementations["writer"], (x, torch.ones(2), 1.0))
    assert torch.equal(x, torch.ones(2))
