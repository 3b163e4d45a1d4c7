import pytest
import torch
from torch import Tensor

import ir_core as ir

PER_TOKEN = {"quantize_fp8_per_token": 448.0, "quantize_int8_per_token": 127.0}
TINY = torch.finfo(torch.float32).tiny
STATIC, INT8 = ir.ops.quantize_fp8_static, ir.ops.quantize_int8_per_token


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_row_takes_the_whole_range_by_its_own_scale(name: str, dtype: torch.dtype) -> None:
    x = _normal(5, 64, dtype=dtype) * torch.tensor([[1], [100], [0.01], [7], [1]], dtype=dtype)
    q, scale = ir.registry()[name](x)
    assert (scale.shape, scale.dtype) == ((5, 1), torch.float32)
    torch.testing.assert_close(scale, x.float().abs().amax(-1, keepdim=True) / PER_TOKEN[name])
    assert q.float().abs().amax(-1).tolist() == [PER_TOKEN[name]] * 5


def test_int8_is_the_nearest_integer() -> None:
    x = _normal(9, 128)
    q, scale = INT8(x)
    assert ((q * scale - x).abs() <= scale * 0.5001).all()


def test_int8_rounds_halves_to_even_and_is_symmetric() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]])
    q, scale = INT8(x)
    assert scale.item() == 1.0
    assert q.tolist() == [[127, 0, 2, 2, 0, -2, -2, -127]]


def test_fp8_rounds_halves_to_even() -> None:
    # Beside 16 its numbers are 2 apart, beside 448 they are 32.
    x = torch.tensor([17.0, 19.0, -17.0, 432.0, 447.0])
    assert STATIC(x, torch.tensor(1.0)).float().tolist() == [16.0, 20.0, -16.0, 448.0, 448.0]


def test_static_scale_divides_and_what_is_too_large_saturates() -> None:
    x = torch.tensor([1.0, -3.0, 1e6, -1e6, torch.inf, -torch.inf, 0.0])
    got = STATIC(x, torch.tensor([0.5]))
    assert got.dtype == torch.float8_e4m3fn
    assert got.float().tolist() == [2.0, -6.0, 448.0, -448.0, 448.0, -448.0, 0.0]


def test_nan_stays_nan_under_a_static_scale() -> None:
    assert STATIC(torch.tensor([torch.nan, 1.0]), torch.tensor(1.0)).isnan().tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_row_with_an_odd_value_has_no_finite_element_and_leaves_the_others(
    name: str, odd: float
) -> None:
    x = _normal(3, 8)
    alone_q, alone_scale = ir.registry()[name](x[::2])
    x[1, 5] = odd
    q, scale = ir.registry()[name](x)
    assert not (q[1].float() * scale[1]).isfinite().any()
    assert torch.equal(q[::2].view(torch.uint8), alone_q.view(torch.uint8))
    assert torch.equal(scale[::2], alone_scale)


def test_int8_of_a_row_with_an_odd_value_is_zero() -> None:
    q, scale = INT8(torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0]]))
    assert q.tolist() == [[0, 0], [0, 0]]
    assert scale[0].isnan()
    assert scale[1].item() == torch.inf


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3 * TINY])
def test_row_of_zeros_or_of_almost_nothing_has_the_smallest_normal_scale(
    name: str, value: float
) -> None:
    q, scale = ir.registry()[name](torch.full((2, 8), value))
    assert scale.flatten().tolist() == [TINY] * 2
    assert q.float().tolist() == [[round(value / TINY)] * 8] * 2


@pytest.mark.parametrize("name", PER_TOKEN)
def test_largest_finite_row_stays_finite(name: str) -> None:
    q, scale = ir.registry()[name](torch.tensor([[torch.finfo(torch.float32).max, 1.0]]))
    assert scale.isfinite().all()
    assert q[0, 0].float() == PER_TOKEN[name]


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("shape", [(64,), (2, 3, 64), (0, 64)])
def test_leading_dims_are_kept(name: str, shape: tuple[int, ...]) -> None:
    q, scale = ir.registry()[name](torch.ones(shape))
    assert (q.shape, scale.shape) == (shape, (*shape[:-1], 1))


WRONG_SCALES = {
    "two of them": torch.ones(2),
    "a column": torch.ones(1, 1),
    "another dtype": torch.ones((), dtype=torch.bfloat16),
}


@pytest.mark.parametrize("scale", WRONG_SCALES.values(), ids=WRONG_SCALES.keys())
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_static_scale_that_is_not_one_float32_is_named(scale: Tensor, device: str) -> None:
    x, scale = torch.ones(2, 8, device=device), scale.to(device)
    with pytest.raises(ir.ArgumentError, match="`quantize_fp8_static` got a `scale` of"):
        STATIC.torch_op(x, scale)
