from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_core.layout import depends_on_token_dims, is_always_contiguous

ROWS = frozenset({0})
MIDDLE = frozenset({1})


def contiguous(x: Tensor, hidden: frozenset[int]) -> bool:
    return is_always_contiguous(tuple(x.shape), x.stride(), hidden)


def depends(x: Tensor, hidden: frozenset[int], dim: int) -> bool:
    return depends_on_token_dims(tuple(x.shape), x.stride(), hidden, dim)


@pytest.mark.parametrize("tokens", [0, 1, 2, 7])
def test_contiguity_is_the_same_for_every_number_of_tokens(tokens: int) -> None:
    assert contiguous(torch.empty(tokens, 8), ROWS)
    assert contiguous(torch.empty(3, tokens, 8), MIDDLE)
    assert not contiguous(torch.empty(tokens, 16)[:, :8], ROWS)
    assert not contiguous(torch.empty(3, tokens, 16)[:, :, :8], MIDDLE)
    assert not contiguous(torch.empty(8, tokens + 1)[:, :tokens].t(), ROWS)


def test_a_single_row_of_a_wider_buffer_is_not_contiguous_though_torch_says_so() -> None:
    row = torch.empty(1, 16)[:, :8]
    assert row.is_contiguous()
    assert not contiguous(row, ROWS)


def test_a_visible_dim_of_size_one_may_have_any_stride() -> None:
    assert contiguous(torch.empty(4, 2, 8)[:, :1], ROWS) is False
    assert contiguous(torch.empty_strided((4, 1, 8), (8, 99, 1)), ROWS)


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_stride_depends_on_token_dims_that_lie_inside(tokens: int) -> None:
    rows = torch.empty(tokens, 3, 8)
    assert [depends(rows, ROWS, dim) for dim in range(3)] == [False, False, False]
    middle = torch.empty(3, tokens, 8)
    assert [depends(middle, MIDDLE, dim) for dim in range(3)] == [True, False, False]
    columns = torch.empty(8, tokens).t()
    assert depends(columns, ROWS, 1)


def test_an_inner_dim_of_size_one_hides_nothing() -> None:
    assert not depends(torch.empty(4, 1, 8), ROWS, 1)
    assert not depends(torch.empty(8).expand(4, 8), ROWS, 0)


@pytest.mark.parametrize("backed", [True, False])
def test_symbolic_sizes_get_the_same_answers(backed: bool) -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        tokens = (
            env.create_symintnode(env.create_symbol(7, _source()), hint=7)
            if backed
            else env.create_unbacked_symint()
        )
        dense, cut = torch.empty((tokens, 8)), torch.empty((tokens, 16))[:, :8]
        middle = torch.empty((3, tokens, 8))
    guards = len(env.guards)
    assert contiguous(dense, ROWS)
    assert not contiguous(cut, ROWS)
    assert contiguous(middle, MIDDLE)
    assert depends(middle, MIDDLE, 0)
    assert not depends(dense, ROWS, 0)
    assert len(env.guards) == guards


def _source() -> Any:
    from torch._dynamo.source import ConstantSource

    return ConstantSource("tokens")
