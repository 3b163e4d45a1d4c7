"""Rows as int8 in C++: native's bits, and behind a norm or an activation those of two kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels import library
from ir_kernels.fused_add_rms_norm.vllm_c import fused_add_rms_norm
from ir_kernels.fused_add_rms_norm_quantize_int8_per_token.vllm_c import (
    fused_add_rms_norm_quantize_int8_per_token,
)
from ir_kernels.quantize_int8_per_token.vllm_c import quantize_int8_per_token
from ir_kernels.rms_norm.vllm_c import rms_norm
from ir_kernels.rms_norm_quantize_int8_per_token.vllm_c import rms_norm_quantize_int8_per_token
from ir_kernels.silu_and_mul.vllm_c import silu_and_mul
from ir_kernels.silu_and_mul_quantize_int8_per_token.vllm_c import (
    silu_and_mul_quantize_int8_per_token,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 7, 16, 63, 576, 577)
TINY = torch.finfo(torch.float32).tiny

pytestmark = pytest.mark.usefixtures("isa")


def _normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def _assert_same(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        )
        assert torch.equal(mine.nan_to_num(nan=-7.0), theirs.nan_to_num(nan=-7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_quantised_rows_are_natives_bit_for_bit(width: int, dtype: torch.dtype) -> None:
    x = _normal(37, width, dtype=dtype)
    _assert_same(quantize_int8_per_token(x), ir.ops.quantize_int8_per_token.native(x))


def test_every_float16_is_rounded_as_native_rounds_it() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = every[every.isfinite()].view(-1, 256)
    for scaled in (x, x.float() * 0.99999, x.float().sqrt().nan_to_num(0)):
        _assert_same(quantize_int8_per_token(scaled), ir.ops.quantize_int8_per_token.native(scaled))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [0, 15, 16, 36])
def test_odd_values_are_natives_wherever_they_stand(at: int, dtype: torch.dtype) -> None:
    odd = (torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max, -0.0, TINY, 1e-45)
    x = _normal(len(odd), 37, dtype=dtype)
    x[:, at] = torch.tensor(odd, dtype=torch.float64).to(dtype)
    x = torch.cat((x, -x, x * 0, torch.full_like(x, 1e-45)))
    _assert_same(quantize_int8_per_token(x), ir.ops.quantize_int8_per_token.native(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_any_layout(dtype: torch.dtype) -> None:
    base = _normal(6, 5, 48, dtype=dtype)
    for x in (base[:, 1:, 8:41], base.transpose(0, 1), base[..., ::2], base[0, 0], base[None]):
        for kernel in (quantize_int8_per_token, silu_and_mul_quantize_int8_per_token):
            if kernel is quantize_int8_per_token or x.shape[-1] % 2 == 0:
                _assert_same(kernel(x), kernel(x.contiguous()))
        wanted = rms_norm_quantize_int8_per_token(x.contiguous(), None, 1e-5)
        _assert_same(rms_norm_quantize_int8_per_token(x, None, 1e-5), wanted)
        both = fused_add_rms_norm_quantize_int8_per_token(x, x, None, 1e-5)
        dense = (x.contiguous(), x.contiguous())
        _assert_same(both, fused_add_rms_norm_quantize_int8_per_token(*dense, None, 1e-5))


def _weights(width: int, dtype: torch.dtype) -> tuple[Tensor | None, ...]:
    weight = _normal(width, seed=2)
    return None, weight, weight.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [None, 5])
def test_norm_then_int8_is_both_kernels_bit_for_bit(
    width: int, dtype: torch.dtype, size: int | None
) -> None:
    x, residual = _normal(17, width, dtype=dtype), _normal(17, width, dtype=dtype, seed=1)
    for weight in _weights(width, dtype):
        rest: tuple[Any, ...] = (weight, 1e-5, size)
        wanted = quantize_int8_per_token(rms_norm(x, *rest))
        _assert_same(rms_norm_quantize_int8_per_token(x, *rest), wanted)
        normal, total = fused_add_rms_norm(x.clone(), residual.clone(), *rest)
        got = fused_add_rms_norm_quantize_int8_per_token(x, residual, *rest)
        _assert_same(got, (*quantize_int8_per_token(normal), total))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_activation_then_int8_is_both_kernels_bit_for_bit(width: int, dtype: torch.dtype) -> None:
    x = _normal(17, 2 * width, dtype=dtype)
    wanted = quantize_int8_per_token(silu_and_mul(x))
    _assert_same(silu_and_mul_quantize_int8_per_token(x), wanted)


def test_a_row_longer_than_the_one_before_does_not_run_over_its_memory() -> None:
    for width in (8, 40_000, 3):
        x = _normal(2, width)
        wanted = quantize_int8_per_token(rms_norm(x, None, 1e-5))
        _assert_same(rms_norm_quantize_int8_per_token(x, None, 1e-5), wanted)


def test_no_rows_give_none() -> None:
    q, scale = quantize_int8_per_token(torch.empty(0, 8))
    assert (q.shape, scale.shape) == ((0, 8), (0, 1))


KERNELS: dict[str, Callable[[Tensor], Any]] = {
    "alone": quantize_int8_per_token,
    "norm": lambda x: rms_norm_quantize_int8_per_token(x, None, 1e-5),
    "add and norm": lambda x: fused_add_rms_norm_quantize_int8_per_token(x, x, None, 1e-5),
    "activation": silu_and_mul_quantize_int8_per_token,
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_rows_without_elements_are_refused(kernel: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match="rows of `x` have no elements, so no scale"):
        kernel(torch.empty(3, 0))


def test_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(RuntimeError, match="`x` and `residual` must have the same dtype and shape"):
        library.kernels.fused_add_rms_norm_quantize_int8_per_token(
            torch.ones(2, 8), torch.ones(2, 9), None, 1e-5
        )
