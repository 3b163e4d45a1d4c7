import pytest
import torch
from torch import Tensor

import ir_core as ir


def _normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_rms_norm_is_the_formula() -> None:
    x, weight = _normal(3, 8), _normal(8, seed=1)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(ir.ops.rms_norm(x, weight, 1e-5), expected)


def test_rms_norm_rounds_to_the_weight_dtype_before_the_product() -> None:
    x = _normal(64, 32, dtype=torch.bfloat16)
    exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    for dtype in (torch.bfloat16, torch.float32):
        weight = _normal(32, dtype=dtype, seed=1)
        expected = (exact.to(dtype) * weight).to(torch.bfloat16)
        assert torch.equal(ir.ops.rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_norms_give_the_activation_dtype(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight = _normal(2, 8, dtype=dtype), _normal(8, dtype=weight_dtype)
    outputs = (ir.ops.rms_norm(x, weight, 1e-5), *ir.ops.fused_add_rms_norm(x, x, weight, 1e-5))
    assert {output.dtype for output in outputs} == {dtype}


def test_rms_norm_without_weight_equals_one_of_ones() -> None:
    x = _normal(4, 16, dtype=torch.bfloat16)
    ones = torch.ones(16, dtype=torch.bfloat16)
    assert torch.equal(ir.ops.rms_norm(x, None, 1e-5), ir.ops.rms_norm(x, ones, 1e-5))


def test_variance_size_measures_the_first_elements_only() -> None:
    x = torch.tensor([[3.0, 4.0, 100.0, 100.0]])
    got = ir.ops.rms_norm(x, None, 0.0, 2)
    torch.testing.assert_close(got, x / (12.5**0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fused_add_equals_add_then_norm_bit_for_bit(dtype: torch.dtype) -> None:
    x, residual = _normal(16, 64, dtype=dtype) * 100, _normal(16, 64, dtype=dtype, seed=1)
    residual -= x
    weight = _normal(64, dtype=dtype, seed=2)
    out, total = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, ir.ops.rms_norm(total, weight, 1e-6))


def test_fused_add_rounds_the_sum_once() -> None:
    x = torch.tensor([[1.0, 256.0]], dtype=torch.bfloat16)
    residual = torch.tensor([[2.0**-8, 1.0]], dtype=torch.bfloat16)
    _, total = ir.ops.fused_add_rms_norm(x, residual, None, 0.0)
    assert total.tolist() == [[1.0, 256.0]]


def test_large_float16_values_do_not_overflow_the_statistics() -> None:
    x = torch.full((1, 64), 60000.0, dtype=torch.float16)
    assert ir.ops.rms_norm(x, None, 1e-5).tolist() == [[1.0] * 64]
