import math

import pytest
import torch
from torch import Tensor

import ir_core as ir


def _table(size: int, max_position: int = 16) -> Tensor:
    frequency = 100.0 ** (-torch.arange(0, size, 2) / size)
    angle = torch.arange(max_position)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def _rotated(x: list[float], position: int, pairs: list[tuple[int, int]]) -> list[float]:
    turned = list(x)
    for at, (i, j) in enumerate(pairs):
        angle = position * 100.0 ** (-2 * at / (2 * len(pairs)))
        cos, sin = math.cos(angle), math.sin(angle)
        turned[i], turned[j] = x[i] * cos - x[j] * sin, x[j] * cos + x[i] * sin
    return turned


@pytest.mark.parametrize(
    ("is_neox", "pairs"), [(True, [(0, 2), (1, 3)]), (False, [(0, 1), (2, 3)])]
)
def test_rotation_turns_each_pair_by_its_angle(is_neox: bool, pairs: list[tuple[int, int]]) -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    query, key = ir.ops.rotary_embedding(x, -x, torch.tensor([5]), _table(4), 4, is_neox)
    expected = _rotated([1.0, 2.0, 3.0, 4.0], 5, pairs)
    torch.testing.assert_close(query.flatten(), torch.tensor(expected))
    assert torch.equal(key, -query)


def test_partial_rotation_keeps_the_rest_of_the_head() -> None:
    x = torch.arange(16.0).reshape(2, 1, 8)
    query, _ = ir.ops.rotary_embedding(x, x, torch.tensor([0, 3]), _table(4), 8)
    assert torch.equal(query[..., 4:], x[..., 4:])
    assert torch.equal(query[0], x[0])
    assert not torch.equal(query[1, :, :4], x[1, :, :4])


def test_joined_heads_give_what_separate_ones_give() -> None:
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([1, 0, 9])
    apart, _ = ir.ops.rotary_embedding(x, x[:, :2], positions, _table(8), 8)
    joined, key = ir.ops.rotary_embedding(
        x.flatten(1), x[:, :2].flatten(1), positions, _table(8), 8
    )
    assert torch.equal(joined, apart.flatten(1))
    assert key.shape == (3, 16)


def test_rotation_rounds_once() -> None:
    x = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    positions = torch.arange(5)
    exact, _ = ir.ops.rotary_embedding(x.float(), x.float(), positions, _table(8), 8)
    rounded, _ = ir.ops.rotary_embedding(x, x, positions, _table(8), 8)
    assert torch.equal(rounded, exact.bfloat16())


def test_position_outside_the_table_is_an_error() -> None:
    x = torch.ones(1, 1, 4)
    with pytest.raises(IndexError):
        ir.ops.rotary_embedding(x, x, torch.tensor([16]), _table(4), 4)
