"""linear and embedding in C++: every way of multiplying against exact float64 products.

Ways differ by ISA, dtype and number of tokens. Shapes: T tokens, I inputs, O outputs.
"""

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.embedding import vllm_c as gather
from ir_kernels.linear import vllm_c as product

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One, the few that stream the weight, and the blocks of tiles and their ends.
TOKENS = (0, 1, 2, 3, 5, 8, 16, 17, 33, 130)
# (outputs, inputs): no full panel, partial last ones behind one and several, an odd number of full
# ones; inputs that end inside a unit, a tile and a chunk.
SHAPES = ((1, 1), (17, 33), (65, 65), (48, 0), (112, 576), (33, 1283))
# Of the sum of the addends' magnitudes, above the rounding of the result.
ERROR = 1e-5


def packed(weight: Tensor) -> Tensor:
    """The weight in layout `panel16`."""
    call = (torch.empty(1, weight.shape[1]), weight.clone(), None, "plain")
    return ir.ops.linear.pack(call, "panel16")[1]


def assert_close(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    expected = x.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    assert got.dtype == x.dtype
    assert got.shape == expected.shape
    addends = x.double().abs() @ weight.double().abs().T + 1
    allowed = ERROR * addends + expected.abs() * torch.finfo(x.dtype).eps
    assert ((got.double() - expected).abs() <= allowed).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_exact_but_for_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for outputs, inputs in SHAPES:
        weight = torch.randn(outputs, inputs).to(dtype)
        for num_tokens in TOKENS:
            x = torch.randn(num_tokens, inputs).to(dtype)
            bias = torch.randn(outputs).to(dtype) if num_tokens % 2 else None
            assert_close(product.linear(x, packed(weight), bias, "panel16"), x, weight, bias)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "inputs"), [(515, 40), (49, 20_001)])
def test_products_pass_the_bounds_of_a_block_of_tokens(
    num_tokens: int, inputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(4)
    weight = torch.randn(35, inputs).to(dtype)
    x, bias = torch.randn(num_tokens, inputs).to(dtype), torch.randn(35).to(dtype)
    assert_close(product.linear(x, packed(weight), bias, "panel16"), x, weight, bias)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("num_tokens", [1, 2, 6, 24])
def test_bfloat16_subnormals_count_at_most_as_zeros(num_tokens: int) -> None:
    x = torch.full((num_tokens, 34), 2.0**-130, dtype=torch.bfloat16)
    weight = torch.full((20, 34), 2.0**100, dtype=torch.bfloat16)
    got = product.linear(x, packed(weight), None, "panel16")
    assert ((got == 0) | (got == 34 * 2.0**-30)).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_subnormals_are_multiplied(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny / 4
    weight = torch.full((20, 34), 8.0, dtype=dtype)
    for num_tokens in (1, 2, 6, 24):
        x = torch.full((num_tokens, 34), tiny, dtype=dtype)
        assert (product.linear(x, packed(weight), None, "panel16") == 34 * 8 * tiny).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    weight = torch.randn(40, 64).to(dtype)
    for x in (
        torch.randn(20, 96)[:, 16:80],
        torch.randn(64, 20).t(),
        torch.randn(3, 5, 96)[..., :64],
        torch.randn(5, 3, 64).transpose(0, 1),
        torch.randn(64),
        torch.randn(1, 64).expand(9, 64),
    ):
        each = x.to(dtype)
        assert_close(product.linear(each, packed(weight), None, "panel16"), each, weight, None)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_special_values_stay_in_their_row(dtype: torch.dtype, value: float) -> None:
    torch.manual_seed(2)
    weight = packed(torch.randn(33, 70).to(dtype))
    for num_tokens in (2, 5, 20, 40):
        x = torch.randn(num_tokens, 70).to(dtype)
        clean = product.linear(x, weight, None, "panel16")
        spoilt = x.clone()
        spoilt[1, 69] = value
        got = product.linear(spoilt, weight, None, "panel16")
        keep = torch.arange(num_tokens) != 1
        assert torch.equal(got[keep], clean[keep])
        assert not got[1].isfinite().any()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_weights_stay_in_their_output(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    plain = torch.randn(33, 70).to(dtype)
    spoilt = plain.clone()
    spoilt[17, 3] = float("nan")
    for num_tokens in (1, 4, 20):
        x = torch.randn(num_tokens, 70).to(dtype)
        got = product.linear(x, packed(spoilt), None, "panel16")
        keep = torch.arange(33) != 17
        clean = product.linear(x, packed(plain), None, "panel16")
        assert torch.equal(got[:, keep], clean[:, keep])
        assert got[:, 17].isnan().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (40, 576)])
def test_rows_are_gathered_bit_for_bit(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    table = torch.randn(shape).to(dtype)
    ids = torch.randint(shape[0], (50,))
    assert torch.equal(gather.embedding(ids[::2], packed(table), "panel16"), table[ids[::2]])


@pytest.mark.parametrize("bad", [-1, 17])
def test_an_id_that_is_no_row_is_named(bad: int) -> None:
    table = packed(torch.randn(17, 8))
    with pytest.raises(RuntimeError, match=rf"`input_ids\[1\]` is {bad}, .* 17 rows"):
        gather.embedding(torch.tensor([3, bad]), table, "panel16")


@pytest.mark.parametrize(
    ("x", "weight", "bias", "words"),
    [
        (torch.ones(2, 5), torch.ones(4, 6), None, "6 columns, .* 5 elements"),
        (torch.ones(2, 6), torch.ones(4, 6).bfloat16(), None, "same dtype"),
        (torch.ones(2, 6), torch.ones(4, 6), torch.ones(3), "vector of 4 elements"),
        (torch.ones(2, 6), torch.ones(8, 6)[::2], None, "contiguous matrix"),
    ],
)
def test_what_does_not_fit_is_an_error(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        product.linear(x, weight, bias, "panel16")
