import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_core import IrOp, Registry
from ir_core.autotuning.rows import row_bounds, rows_place, token_sizes


@pytest.fixture
def gather(registry: Registry) -> IrOp:
    @registry.register_op(activations=(), token_dims={"bias": 0, "rows": (1, 2), "count": ()})
    def gather(weight: Tensor, bias: Tensor | None, rows: Tensor, count: int) -> Tensor:
        return rows + weight

    return gather


def test_rows_are_the_first_token_dim_of_a_tensor_that_is_always_there(
    scale: IrOp, gather: IrOp
) -> None:
    assert rows_place(scale) == ("x", 0)
    assert rows_place(gather) == ("rows", 1)


def test_an_op_without_token_dims_has_no_rows(registry: Registry) -> None:
    @registry.register_op(activations=())
    def fill(weight: Tensor) -> Tensor:
        return weight * 2

    assert rows_place(fill) is None
    assert row_bounds(fill, (torch.ones(3),), {}) == (0, None)


def test_an_eager_call_has_one_number_of_rows(scale: IrOp) -> None:
    assert row_bounds(scale, (torch.ones(7, 4), None, 1.0, None), {}) == (7, 7)


def test_all_sizes_that_count_tokens_are_seen(scale: IrOp, gather: IrOp) -> None:
    assert token_sizes(scale, (torch.ones(7, 4), torch.ones(4), 1.0, None)) == {7}
    values = (torch.ones(9), torch.ones(2), torch.ones(5, 3, 4), 6)
    assert token_sizes(gather, values) == {2, 3, 4, None}
    assert token_sizes(gather, (values[0], None, *values[2:])) == {3, 4, None}


def test_traced_rows_have_the_bounds_that_are_known(scale: IrOp) -> None:
    environment = ShapeEnv()
    size = environment.create_unbacked_symint()
    guards = len(environment.guards)

    class Call:
        def __init__(self, rows: object) -> None:
            self.shape = (rows, 4)

    def bounds(rows: object, known: object) -> object:
        return row_bounds(scale, (Call(rows), None, 1.0, None), known)  # type: ignore[arg-type]

    symbol = size.node.expr
    assert bounds(size, {}) == (0, None)
    assert bounds(size, {symbol: (9, 64)}) == (9, 64)
    assert bounds(size, {symbol: (9, None)}) == (9, None)
    assert bounds((size + 1) // 2, {symbol: (9, 64)}) == (5, 32)
    assert len(environment.guards) == guards
