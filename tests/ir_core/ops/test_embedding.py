import pytest
import torch

import ir_core as ir


def test_embedding_copies_rows_bit_for_bit() -> None:
    weight = torch.tensor([[1.0, torch.nan], [torch.inf, -0.0], [1e-40, 2.0]])
    rows = ir.ops.embedding(torch.tensor([2, 0, 2, 1]), weight)
    assert torch.equal(rows.view(torch.int32), weight[[2, 0, 2, 1]].view(torch.int32))


def test_embedding_w8a16_scales_groups_and_rounds_once() -> None:
    weight = torch.tensor([[1, 2, 3, 4], [-128, 127, 0, 101]], dtype=torch.int8)
    scale = torch.tensor([[1.0, 0.5], [2.0, 1.0009765625]], dtype=torch.float16)
    ids = torch.tensor([1, 0])
    exact = ir.ops.embedding_w8a16(ids, weight, scale, torch.float32, group_size=2)
    assert exact.tolist() == [[-256.0, 254.0, 0.0, 101.0986328125], [1.0, 2.0, 1.5, 2.0]]
    rounded = ir.ops.embedding_w8a16(ids, weight, scale, torch.bfloat16, group_size=2)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exact.to(torch.bfloat16))


def test_no_ids_give_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    weight, scale = torch.ones(3, 4, dtype=torch.int8), torch.ones(3, 1, dtype=torch.float16)
    assert ir.ops.embedding(none, torch.ones(3, 4)).shape == (0, 4)
    rows = ir.ops.embedding_w8a16(none, weight, scale, torch.bfloat16, 4)
    assert (rows.shape, rows.dtype) == ((0, 4), torch.bfloat16)


@pytest.mark.parametrize("row", [-1, 3])
def test_an_id_that_is_no_row_is_an_error(row: int) -> None:
    ids = torch.tensor([0, row])
    weight, scale = torch.ones(3, 4, dtype=torch.int8), torch.ones(3, 1, dtype=torch.float16)
    with pytest.raises(IndexError, match="out of range"):
        ir.ops.embedding(ids, torch.ones(3, 4))
    with pytest.raises(IndexError, match="out of range"):
        ir.ops.embedding_w8a16(ids, weight, scale, torch.float32, 4)


@pytest.mark.parametrize(
    ("scale", "group_size", "words"),
    [
        (torch.ones(3, 2), 4, r"`scale` of shape \[3, 2\]; it is \[3, 1\]"),
        (torch.ones(3, 1), 3, "`embedding_w8a16` got `group_size` 3 for rows of 4"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(
    scale: torch.Tensor, group_size: int, words: str
) -> None:
    weight = torch.ones(3, 4, dtype=torch.int8)
    with pytest.raises(ir.ArgumentError, match=words):
        ir.ops.embedding_w8a16(torch.tensor([0]), weight, scale.half(), torch.float32, group_size)
