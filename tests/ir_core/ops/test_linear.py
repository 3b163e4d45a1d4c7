import pytest
import torch

import ir_core as ir


def test_linear_multiplies_by_the_transposed_weight_and_adds_the_bias() -> None:
    x = torch.tensor([[1.0, 2.0]])
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    bias = torch.tensor([10.0, 20.0, 30.0])
    assert ir.ops.linear(x, weight, bias).tolist() == [[11.0, 22.0, 33.0]]
    assert ir.ops.linear(x[0], weight).tolist() == [1.0, 2.0, 3.0]


def test_linear_sums_16_bit_values_in_float32() -> None:
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert ir.ops.linear(x, x).item() == 4096


def test_linear_of_other_sizes_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        ir.ops.linear(torch.ones(1, 2), torch.ones(3, 3))
