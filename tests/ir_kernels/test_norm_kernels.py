"""rms_norm and fused_add_rms_norm in C++: values against native and against exact arithmetic."""

import pytest
import torch
from torch import Tensor
from ulp import max_ulp

import ir_core as ir
from ir_kernels.fused_add_rms_norm.vllm_c import fused_add_rms_norm
from ir_kernels.rms_norm.vllm_c import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One element; less than a block of 16; one short of four blocks; a model's; one more than that.
WIDTHS = (1, 7, 63, 576, 577)
# The sum's order differs from native's: float32 results may, rounded ones hardly ever do.
ULPS = {torch.float32: 4, torch.bfloat16: 1, torch.float16: 1}
EPSILON = 1e-5

pytestmark = pytest.mark.usefixtures("isa")


def native_rms_norm(x: Tensor, weight: Tensor | None, size: int | None = None) -> Tensor:
    return ir.ops.rms_norm.native(x, weight, EPSILON, size)


def norm_weights(width: int, dtype: torch.dtype) -> list[Tensor | None]:
    weight = 1 + torch.randn(width) / 4
    return [None, weight.to(dtype), weight]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_agrees_with_native(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, width).to(dtype)
    for weight in norm_weights(width, dtype):
        got = rms_norm(x, weight, EPSILON)
        assert max_ulp(got, native_rms_norm(x, weight)) <= ULPS[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_is_native_bit_for_bit_almost_everywhere(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(256, 576).to(dtype), torch.randn(576).to(dtype)
    same = rms_norm(x, weight, EPSILON) == native_rms_norm(x, weight)
    assert same.float().mean() > 0.9995


def test_rms_norm_is_as_close_to_the_truth_as_native() -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(64, 2048), torch.randn(2048)
    truth = native_rms_norm(x.double(), weight.double())

    def error(result: Tensor) -> float:
        return float(((result - truth) / truth).abs().max())

    assert error(rms_norm(x, weight, EPSILON)) <= 1.1 * error(native_rms_norm(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 16, 40, 64, 1000, -8, 0])
def test_variance_size_slices_as_python_does(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x, weight = torch.randn(5, 64).to(dtype), torch.randn(64).to(dtype)
    got = rms_norm(x, weight, EPSILON, size)
    assert max_ulp(got, native_rms_norm(x, weight, size)) <= ULPS[dtype]
    normal, _ = fused_add_rms_norm(x.clone(), torch.zeros_like(x), weight, EPSILON, size)
    torch.testing.assert_close(normal, got, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_fused_add_rms_norm_is_an_add_and_then_a_norm(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    x, residual = torch.randn(33, width).to(dtype), (100 * torch.randn(33, width)).to(dtype)
    total = (x.float() + residual.float()).to(dtype)
    for weight in norm_weights(width, dtype):
        normal, added = fused_add_rms_norm(x.clone(), residual.clone(), weight, EPSILON)
        assert torch.equal(added, total)
        assert torch.equal(normal, rms_norm(total, weight, EPSILON))


def test_fused_add_rms_norm_writes_into_its_arguments() -> None:
    x, residual = torch.randn(3, 24), torch.randn(3, 24)
    normal, added = fused_add_rms_norm(x, residual, None, EPSILON)
    assert normal is x
    assert added is residual


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_reads_any_layout(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    merged = torch.randn(6, 3 * 64 + 8).to(dtype)
    heads = merged[:, 8:].view(6, 3, 64)
    layouts = {
        "slice of a merged row": merged[:, 64:128],
        "heads of a merged row": heads,
        "some heads": heads[:, 1:],
        "transposed": merged.t(),
        "every other element": merged[:, ::2],
        "one row expanded": merged[:1].expand(6, 200),
        "four dims, permuted": heads[None].transpose(1, 2),
        "vector": merged[0],
    }
    for name, x in layouts.items():
        weight = torch.randn(x.shape[-1]).to(dtype)
        got = rms_norm(x, weight, EPSILON)
        assert got.is_contiguous(), name
        assert torch.equal(got, rms_norm(x.contiguous(), weight, EPSILON)), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_rms_norm_writes_any_layout_and_nothing_else(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    base, other = torch.randn(6, 200).to(dtype), torch.randn(6, 200).to(dtype)
    for view in (
        lambda t: t[:, 64:128],
        lambda t: t[:, 8:].view(6, 3, 64)[:, 1:],
        lambda t: t.t()[3:40],
        lambda t: t[:, ::2],
    ):
        left, right = base.clone(), other.clone()
        weight = torch.randn(view(left).shape[-1]).to(dtype)
        expected = fused_add_rms_norm(
            view(base).contiguous(), view(other).contiguous(), weight, EPSILON
        )
        fused_add_rms_norm(view(left), view(right), weight, EPSILON)
        assert torch.equal(view(left), expected[0])
        assert torch.equal(view(right), expected[1])
        for written, before in ((left, base), (right, other)):
            view(written).copy_(view(before))
            assert torch.equal(written, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_is_read_in_any_layout(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    x, residual = torch.randn(3, 24).to(dtype), torch.randn(3, 24).to(dtype)
    wide = torch.randn(24, 2).to(dtype)
    for weight in (wide[:, 0], wide.float()[:, 1], wide[0, 0].expand(24)):
        dense = weight.contiguous()
        assert torch.equal(rms_norm(x, weight, EPSILON), rms_norm(x, dense, EPSILON))
        got = fused_add_rms_norm(x.clone(), residual.clone(), weight, EPSILON)
        expected = fused_add_rms_norm(x.clone(), residual.clone(), dense, EPSILON)
        assert all(torch.equal(*each) for each in zip(got, expected, strict=True))


def test_fused_add_rms_norm_refuses_rows_that_share_memory() -> None:
    x = torch.randn(1, 24).expand(3, 24)
    with pytest.raises(RuntimeError, match="`x` is expanded, so it cannot be written: clone it"):
        fused_add_rms_norm(x, torch.randn(3, 24), None, EPSILON)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 3, 64)])
def test_empty_tensors_stay_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.empty(shape, dtype=dtype)
    assert rms_norm(x, None, EPSILON).shape == shape
    assert [each.shape for each in fused_add_rms_norm(x, x.clone(), None, EPSILON)] == [shape] * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_special_values_spoil_their_own_row_as_in_native(value: float, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    x, weight = torch.randn(4, 77).to(dtype), torch.randn(77).to(dtype)
    x[2, 70] = value
    assert max_ulp(rms_norm(x, weight, EPSILON), native_rms_norm(x, weight)) <= ULPS[dtype]
    for weights in (weight, weight.float()):
        spoilt = weights.clone()
        spoilt[5] = value
        got = rms_norm(x, spoilt, EPSILON)
        assert max_ulp(got, native_rms_norm(x, spoilt)) <= ULPS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormals_and_overflow_are_rounded_as_in_native(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    huge = torch.finfo(dtype).max
    x = torch.tensor([[1.0, -2.0, 0.5, 0.0], [tiny, -tiny, tiny / 4, -0.0]], dtype=dtype)
    for scale in (tiny / 2, tiny, huge, 1e-3):
        weight = torch.tensor([scale, scale, -scale, scale], dtype=dtype)
        got, expected = rms_norm(x, weight, 1e-30), ir.ops.rms_norm.native(x, weight, 1e-30)
        assert max_ulp(got, expected) <= ULPS[dtype]
        assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_read_and_rounded_exactly(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    every = bits.view(dtype)[:, None]
    every = every[every.isfinite()][:, None]
    _, added = fused_add_rms_norm(torch.zeros_like(every), every.clone(), None, EPSILON)
    assert torch.equal(added, every)
    # Halves of neighbours' distances: sums that lie on a tie, and next to one.
    other = (every.float() * 2.0**-9).to(dtype)
    for addend in (other, -other, (every.float() * 0.75 * 2.0**-8).to(dtype)):
        _, added = fused_add_rms_norm(addend.clone(), every.clone(), None, EPSILON)
        assert torch.equal(added, (every.float() + addend.float()).to(dtype))


def test_arguments_that_do_not_fit_are_named() -> None:
    x = torch.randn(2, 8)
    cases = {
        "`weight` must be a vector of 8": lambda: rms_norm(x, torch.ones(7), EPSILON),
        "`weight` must have x's dtype or float32": lambda: rms_norm(
            x, torch.ones(8).bfloat16(), EPSILON
        ),
        "`x` must be float32, bfloat16 or float16": lambda: rms_norm(x.double(), None, EPSILON),
        "`x` must have at least one dimension": lambda: rms_norm(x[0, 0], None, EPSILON),
        "`x` and `residual` must have the same dtype and shape": lambda: fused_add_rms_norm(
            x, x[:1].clone(), None, EPSILON
        ),
    }
    for message, call in cases.items():
        with pytest.raises(RuntimeError, match=message):
            call()
