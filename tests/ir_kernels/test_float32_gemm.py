"""`float32_gemm`: rounds once, whatever the block of the weight a column falls into."""

import pytest
import torch

from ir_kernels.linear import float32_gemm


def rounded_once(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    exact = x.double() @ weight.double().T
    return (exact if bias is None else exact + bias.double()).to(x.dtype)


@pytest.mark.parametrize("biased", [False, True])
def test_sums_are_rounded_once_across_blocks(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three blocks, the last one short.
    monkeypatch.setattr(float32_gemm, "_BLOCK_BYTES", 4 * 64 * 10)
    x = torch.randn(5, 64).bfloat16()
    weight = torch.randn(25, 64).bfloat16()
    bias = torch.randn(25).bfloat16() if biased else None
    out = float32_gemm.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    # A float32 sum of 64 terms may fall on the other side of a rounding boundary, hence one ulp.
    eps = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(out, rounded_once(x, weight, bias), rtol=eps, atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1, 3, 4])
def test_leading_dims_are_kept_for_few_and_many_tokens(tokens: int) -> None:
    x = torch.randn(2, tokens, 16).bfloat16()
    weight = torch.randn(8, 16).bfloat16()
    out = float32_gemm.linear(x, weight)
    assert out.shape == (2, tokens, 8)
    torch.testing.assert_close(out, rounded_once(x, weight, None))


def test_strided_rows_are_read_where_they_are() -> None:
    wide = torch.randn(6, 40).bfloat16()
    weight = torch.randn(8, 16).bfloat16()
    out = float32_gemm.linear(wide[:, 3:19], weight)
    torch.testing.assert_close(out, rounded_once(wide[:, 3:19], weight, None))


def test_sum_of_nothing_is_the_bias() -> None:
    bias = torch.randn(3).bfloat16()
    out = float32_gemm.linear(torch.empty(5, 0).bfloat16(), torch.empty(3, 0).bfloat16(), bias)
    assert torch.equal(out, bias.expand(5, 3))


def test_predicate_wants_bfloat16_throughout() -> None:
    x, weight, bias = torch.ones(4, 8).bfloat16(), torch.ones(3, 8).bfloat16(), torch.ones(3)
    assert float32_gemm.supports_args(x, weight) is True
    assert float32_gemm.supports_args(x, weight, bias.bfloat16()) is True
    reasons = [
        float32_gemm.supports_args(x, weight.float()),
        float32_gemm.supports_args(x, weight, bias),
        float32_gemm.supports_args(x.half(), weight.half()),
    ]
    assert reasons == [
        "needs one dtype for both; x has bfloat16, weight float32",
        "needs one dtype for both; x has bfloat16, bias float32",
        "takes bfloat16; x has float16",
    ]


def test_availability_follows_torch() -> None:
    available, reason = float32_gemm.availability()
    assert available != torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert bool(reason) != available
