from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir

ONE = torch.float16


def test_w4a16_takes_the_low_nibble_first_and_subtracts_8() -> None:
    weight = torch.tensor([[0x0F, 0x80]], dtype=torch.uint8)  # 15, 0, 0, 8
    scale = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    values = ir.ops.linear_w4a16(torch.eye(4), weight, scale, group_size=2)
    assert values.flatten().tolist() == [3.5, -4.0, -16.0, 0.0]


def test_w4a16_with_a_minimum_adds_it_and_subtracts_nothing() -> None:
    weight = torch.tensor([[0x0F, 0x80]], dtype=torch.uint8)
    scale = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    minimum = torch.tensor([[-1.0, 4.0]], dtype=torch.float16)
    bias = torch.tensor([100.0])
    values = ir.ops.linear_w4a16(torch.eye(4), weight, scale, minimum, bias, group_size=2)
    assert values.flatten().tolist() == [106.5, 99.0, 104.0, 120.0]


def test_w8a16_scales_each_group() -> None:
    weight = torch.tensor([[-128, 127, 1, 2], [0, 3, -4, 5]], dtype=torch.int8)
    scale = torch.tensor([[0.5, 2.0], [1.0, 0.25]], dtype=torch.float16)
    values = ir.ops.linear_w8a16(torch.eye(4), weight, scale, group_size=2)
    assert values.T.tolist() == [[-64.0, 63.5, 2.0, 4.0], [0.0, 3.0, -1.0, 1.25]]


@pytest.mark.parametrize("name", ["linear_w4a16", "linear_w8a16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_rounded_to_the_dtype_of_x_and_multiplied(name: str, dtype: torch.dtype) -> None:
    op = ir.registry()[name]
    x, *rest = op.generate_inputs(num_tokens=3, dtype=dtype, shape=(20, 64), biased=True)
    arguments = op.bind(x, *rest)
    named = dict(zip(op.schema.names, arguments, strict=True))
    # Unit vectors read the values out, exactly: each sum has one term.
    eye = torch.eye(64, dtype=dtype)
    values = op(**{**named, "x": eye, "bias": None}).T.contiguous()
    assert torch.equal(op(*arguments), ir.ops.linear(x, values, named["bias"]))
    exact = op(**{**named, "x": eye.double(), "bias": None}).T
    assert torch.equal(values, exact.to(torch.float32).to(dtype))


def _w4(**changed: Tensor | int) -> dict[str, Any]:
    call: dict[str, Any] = {
        "x": torch.ones(2, 8),
        "weight": torch.zeros(3, 4, dtype=torch.uint8),
        "scale": torch.zeros(3, 2, dtype=torch.float16),
        "group_size": 4,
    }
    return {**call, **changed}


def _w8(**changed: Tensor | int) -> dict[str, Any]:
    call: dict[str, Any] = {
        "x": torch.ones(2, 8),
        "weight": torch.zeros(3, 8, dtype=torch.int8),
        "scale": torch.zeros(3, 2, dtype=torch.float16),
        "group_size": 4,
    }
    return {**call, **changed}


WRONG = [
    ("linear_w4a16", _w4(x=torch.ones(2, 6)), r"`x` of shape \[2, 6\]; its last dim is 8"),
    ("linear_w4a16", _w4(group_size=3), "`group_size` 3 for rows of 8; it is a positive, even"),
    ("linear_w4a16", _w4(group_size=6), "that divides"),
    ("linear_w4a16", _w4(group_size=0), "`group_size` 0"),
    ("linear_w4a16", _w4(group_size=-4), "`group_size` -4"),
    ("linear_w4a16", _w4(scale=torch.zeros(3, 4, dtype=ONE)), r"`scale` .* it is \[3, 2\]"),
    ("linear_w4a16", _w4(minimum=torch.zeros(2, 2, dtype=ONE)), r"`minimum` .* it is \[3, 2\]"),
    ("linear_w4a16", _w4(weight=torch.zeros(3, 4, dtype=torch.int8)), "it is torch.uint8"),
    ("linear_w4a16", _w4(weight=torch.zeros(12, dtype=torch.uint8)), "of 1 dims; it has 2"),
    ("linear_w8a16", _w8(x=torch.ones(2, 4)), "its last dim is 8"),
    ("linear_w8a16", _w8(x=torch.tensor(1.0)), "its last dim is 8"),
    ("linear_w8a16", _w8(group_size=3), "`linear_w8a16` got `group_size` 3"),
    ("linear_w8a16", _w8(scale=torch.zeros(2, 3, dtype=ONE)), r"`scale` .* it is \[3, 2\]"),
    ("linear_w8a16", _w8(weight=torch.zeros(3, 8, dtype=torch.uint8)), "it is torch.int8"),
]


@pytest.mark.parametrize(("name", "call", "words"), WRONG)
def test_a_shape_that_does_not_fit_is_named(name: str, call: dict[str, Any], words: str) -> None:
    op = ir.registry()[name]
    with pytest.raises(ir.ArgumentError, match=words):
        op(**call)
    meta = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in call.items()}
    with pytest.raises(ir.ArgumentError, match=words):
        op.torch_op(**meta)


@pytest.mark.parametrize("call", [_w4(), _w8()], ids=["w4a16", "w8a16"])
def test_no_tokens_and_no_outputs_are_sizes_like_others(call: dict[str, Any]) -> None:
    op = ir.ops.linear_w4a16 if call["weight"].dtype == torch.uint8 else ir.ops.linear_w8a16
    assert op(**{**call, "x": torch.ones(0, 8)}).shape == (0, 3)
    assert op(**{**call, "weight": call["weight"][:0], "scale": call["scale"][:0]}).shape == (2, 0)
