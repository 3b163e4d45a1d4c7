"""linear_w8a8: exact sums of bytes, then float32, then one rounding."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir


def _call(**changed: Any) -> dict[str, Any]:
    call: dict[str, Any] = {
        "x": torch.ones(2, 8, dtype=torch.int8),
        "x_scale": torch.ones(2, 1),
        "weight": torch.ones(3, 8, dtype=torch.int8),
        "weight_scale": torch.ones(3),
        "dtype": torch.float32,
    }
    return {**call, **changed}


def test_each_row_of_both_has_its_scale() -> None:
    found = ir.ops.linear_w8a8(
        torch.tensor([[1, -2], [3, 4]], dtype=torch.int8),
        torch.tensor([[0.5], [2.0]]),
        torch.tensor([[-128, 127], [1, 1], [0, 5]], dtype=torch.int8),
        torch.tensor([1.0, 10.0, 0.25]),
        torch.float32,
        torch.tensor([0.0, 0.0, 100.0]),
    )
    assert found.tolist() == [[-191.0, -5.0, 98.75], [248.0, 140.0, 110.0]]


@pytest.mark.parametrize("sign", [-128, 127])
def test_the_longest_rows_add_up_exactly(sign: int) -> None:
    x = torch.full((1, 131071), -128, dtype=torch.int8)
    found = ir.ops.linear_w8a8(
        x, torch.ones(1, 1), torch.full_like(x, sign), torch.ones(1), torch.float32
    )
    assert found.item() == float(torch.tensor(-128 * sign * 131071).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_result_is_that_of_float32_rounded_once(dtype: torch.dtype) -> None:
    arguments = ir.ops.linear_w8a8.generate_inputs(
        num_tokens=7, dtype=dtype, shape=(20, 64), biased=True
    )
    x, x_scale, weight, weight_scale, _, bias = arguments
    wide = ir.ops.linear_w8a8(x, x_scale, weight, weight_scale, torch.float32, bias.float())
    found = ir.ops.linear_w8a8(*arguments)
    assert found.dtype == dtype
    assert torch.equal(found, wide.to(dtype))


WRONG = [
    (_call(weight=torch.ones(3, 8)), "`weight` of torch.float32; it is torch.int8"),
    (_call(weight=torch.ones(8, dtype=torch.int8)), r"`weight` of shape \[8\]; it has 2 dims"),
    (
        _call(
            x=torch.ones(1, 131072, dtype=torch.int8),
            x_scale=torch.ones(1, 1),
            weight=torch.ones(1, 131072, dtype=torch.int8),
            weight_scale=torch.ones(1),
        ),
        "at most 131071",
    ),
    (_call(x=torch.ones(2, 7, dtype=torch.int8)), r"int8\[2, 7\]; .* its last dim is 8"),
    (_call(x=torch.ones(2, 8)), r"`x` of torch.float32.*it is torch.int8"),
    (_call(x=torch.tensor(1, dtype=torch.int8)), "its last dim is 8"),
    (_call(x_scale=torch.ones(2)), r"`x_scale` of shape \[2\]; it is \[2, 1\]"),
    (_call(x_scale=torch.ones(1, 1)), r"`x_scale` of shape \[1, 1\]; it is \[2, 1\]"),
    (_call(weight_scale=torch.ones(3, 1)), r"`weight_scale` of shape \[3, 1\]; it is \[3\]"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_a_shape_or_dtype_that_does_not_fit_is_named(call: dict[str, Any], words: str) -> None:
    with pytest.raises(ir.ArgumentError, match=words):
        ir.ops.linear_w8a8(**call)
    meta = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in call.items()}
    with pytest.raises(ir.ArgumentError, match=words):
        ir.ops.linear_w8a8.torch_op(**meta)


def test_no_tokens_and_no_outputs_are_sizes_like_others() -> None:
    none = _call(x=torch.ones(0, 8, dtype=torch.int8), x_scale=torch.ones(0, 1))
    assert ir.ops.linear_w8a8(**none).shape == (0, 3)
    none = _call(weight=torch.ones(0, 8, dtype=torch.int8), weight_scale=torch.ones(0))
    assert ir.ops.linear_w8a8(**none).shape == (2, 0)
