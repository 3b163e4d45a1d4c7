"""silu_and_mul in C++: values, exactness of its exp, layouts and special values."""

import pytest
import torch
from ulp import max_ulp

import ir_core as ir
from ir_kernels.silu_and_mul.vllm_c import silu_and_mul

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ULPS = {torch.float32: 4, torch.bfloat16: 1, torch.float16: 1}

pytestmark = pytest.mark.usefixtures("isa")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 63, 576, 577])
def test_agrees_with_native(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (4 * torch.randn(17, 2 * width)).to(dtype)
    assert max_ulp(silu_and_mul(x), ir.ops.silu_and_mul.native(x)) <= ULPS[dtype]


def test_float32_is_within_three_ulp_of_the_truth_over_the_whole_range() -> None:
    # exp is within 2 ulp; the sum and the quotient add half an ulp each. Below -87 the quotient's
    # denominator passes float32's range and the result is a zero or denormal, as in torch.
    gate = torch.cat([torch.linspace(-87, 100, 400_001), torch.linspace(-1, 1, 200_001)])
    truth = gate.double() * torch.sigmoid(gate.double())
    x = torch.stack([gate, torch.ones_like(gate)], dim=-1)
    assert max_ulp(silu_and_mul(x)[:, 0], truth.float()) <= 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_torchs(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gate = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), largest, -largest, -88.7, -100, -200]
    )
    for up in (1.0, -2.0, 0.0, float("inf"), float("nan")):
        x = torch.stack([gate, torch.full_like(gate, up)], dim=-1).to(dtype)
        assert max_ulp(silu_and_mul(x), ir.ops.silu_and_mul.native(x)) <= ULPS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_any_layout(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    base = torch.randn(6, 5, 48).to(dtype)
    for x in (
        base,
        base[:, 1:, 8:40],
        base.transpose(0, 1),
        base[..., ::2],
        base[0, 0],
        base[None],
    ):
        got = silu_and_mul(x)
        assert got.is_contiguous()
        assert torch.equal(got, silu_and_mul(x.contiguous()))
        assert got.shape == (*x.shape[:-1], x.shape[-1] // 2)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_empty_tensors_stay_empty(shape: tuple[int, int]) -> None:
    assert silu_and_mul(torch.empty(shape)).shape == (shape[0], shape[1] // 2)


def test_odd_width_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the last dimension of `x` must be even, not 5"):
        silu_and_mul(torch.randn(2, 5))
