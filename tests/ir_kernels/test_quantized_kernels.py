"""linear_w4a16 and linear_w8a16 in C++: every way of multiplying against exact float64 products.

Ways differ by ISA, dtype and number of tokens. Shapes: T tokens, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.linear_w4a16 import vllm_c as w4a16
from ir_kernels.linear_w8a16 import vllm_c as w8a16

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMATS = ("w4", "w4-minimum", "w8")
# Integers, blocks of one, two and three sizes, both kinds of tiles and their ends, several blocks.
TOKENS = (1, 2, 3, 4, 7, 12, 13, 16, 17, 29, 32, 33, 70)
# (outputs, inputs, group size): one panel with less than a row of a tile; partial panels behind
# none, one and several; an odd number of panels; groups that end inside a tile; more than a chunk.
SHAPES = ((5, 16, 16), (17, 48, 16), (33, 96, 32), (48, 192, 64), (34, 384, 128), (16, 1056, 32))
# Of the norm of the addends, above the rounding of the result: order of sums, and in bfloat16 tiles
# the rounding of each weight, which is within 2/3 of a unit.
ERRORS = {torch.float32: 4e-6, torch.bfloat16: 1e-2, torch.float16: 4e-6}


@dataclass(frozen=True, slots=True)
class Weights:
    """A plain weight, the packed one, and its values in float64."""

    packed: tuple[Tensor | None, ...]
    values: Tensor  # [O, I]
    group_size: int

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        weight, scale, minimum = self.packed
        assert weight is not None
        assert scale is not None
        if weight.dtype == torch.uint8:
            return w4a16.linear_w4a16(x, weight, scale, minimum, bias, self.group_size, "panel16")
        return w8a16.linear_w8a16(x, weight, scale, bias, self.group_size, "panel16")

    def expected(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        product = x.double() @ self.values.T
        return product if bias is None else product + bias.double()


@cache
def weights(form: str, shape: tuple[int, int, int], scale_of: str = "normal") -> Weights:
    outputs, inputs, group_size = shape
    random = torch.Generator().manual_seed(outputs + inputs)
    scale = (torch.randn(outputs, inputs // group_size, generator=random) * 0.02).half()
    if scale_of == "special":
        special = torch.tensor([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-15, -1.0, 3e-3])
        scale = special.half().repeat(scale.numel())[: scale.numel()].view(scale.shape)
    minimum = torch.randn(scale.shape, generator=random).half() if form == "w4-minimum" else None
    if form == "w8":
        plain = torch.randint(-128, 128, (outputs, inputs), generator=random, dtype=torch.int8)
        integers = plain.double()
    else:
        size = (outputs, inputs // 2)
        plain = torch.randint(256, size, generator=random, dtype=torch.uint8)
        nibbles = torch.stack((plain & 15, plain >> 4), dim=-1).flatten(1)
        integers = nibbles.double() - (8 if minimum is None else 0)
    values = integers * scale.double().repeat_interleave(group_size, 1)
    if minimum is not None:
        values += minimum.double().repeat_interleave(group_size, 1)
    return Weights(_packed(form, plain, scale, minimum, group_size), values, group_size)


def _packed(
    form: str, plain: Tensor, scale: Tensor, minimum: Tensor | None, group_size: int
) -> tuple[Tensor | None, ...]:
    x = torch.empty(1)
    if form == "w8":
        call = (x, plain, scale.clone(), None, group_size, "plain")
        packed = ir.ops.linear_w8a16.pack(call, "panel16")
        return packed[1], packed[2], None
    low = None if minimum is None else minimum.clone()
    call = (x, plain, scale.clone(), low, None, group_size, "plain")
    packed = ir.ops.linear_w4a16.pack(call, "panel16")
    return packed[1], packed[2], packed[3]


def assert_close(got: Tensor, x: Tensor, of: Weights, bias: Tensor | None = None) -> None:
    """Within ERRORS of the addends' norm, and the rounding to x's dtype."""
    expected = of.expected(x, bias)
    assert got.dtype == x.dtype
    assert got.shape == expected.shape
    norm = (x.double().square() @ of.values.square().T).sqrt()
    info = torch.finfo(x.dtype)
    allowed = ERRORS[x.dtype] * norm + expected.abs() * info.eps + info.smallest_normal
    assert ((got.double() - expected).abs() <= allowed).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_products_are_exact_but_for_rounding(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        of = weights(form, shape)
        for num_tokens in TOKENS:
            x = torch.randn(num_tokens, shape[1]).to(dtype)
            bias = torch.randn(shape[0]).to(dtype) if num_tokens % 2 else None
            assert_close(of.linear(x, bias), x, of, bias)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_zero_negative_and_denormal_scales_count(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    of = weights(form, (33, 96, 32), "special")
    for num_tokens in (1, 4, 33):
        x = torch.randn(num_tokens, 96).to(dtype)
        assert_close(of.linear(x), x, of)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("form", FORMATS)
def test_weights_without_scale_are_zeros(form: str) -> None:
    """Exactly, though the kernels take constants off sums."""
    of = weights(form, (17, 48, 16))
    weight, scale, minimum = of.packed
    assert scale is not None
    low = None if minimum is None else torch.zeros_like(minimum)
    none = Weights((weight, torch.zeros_like(scale), low), torch.zeros_like(of.values), 16)
    for dtype in DTYPES:
        for num_tokens in (1, 5, 20):
            assert not none.linear(torch.randn(num_tokens, 48).to(dtype)).any()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "max"])
def test_special_values_stay_in_their_row(form: str, dtype: torch.dtype, value: str) -> None:
    torch.manual_seed(2)
    of = weights(form, (33, 96, 32))
    for num_tokens in (2, 3, 5, 20, 40):
        x = torch.randn(num_tokens, 96).to(dtype)
        clean = of.linear(x)
        spoilt = x.clone()
        spoilt[1, 70] = torch.finfo(dtype).max if value == "max" else float(value)
        got = of.linear(spoilt)
        keep = torch.arange(num_tokens) != 1
        assert torch.equal(got[keep], clean[keep])
        # By definition: each value rounded, then multiplied.
        values = of.values.float().to(dtype).double()
        expected = (spoilt[1].double() @ values.T).to(dtype)
        assert torch.equal(got[1].isnan(), expected.isnan())
        if value != "max":
            infinite = expected.isinf()
            assert torch.equal(got[1][infinite], expected[infinite])
            assert (infinite | expected.isnan()).all()
        else:
            # The greatest value times a weight swamps the rest, unless that weight is tiny.
            torch.testing.assert_close(got[1], expected, rtol=2e-2, atol=1.0, equal_nan=True)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_group_may_hold_very_different_elements(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    of = weights(form, (33, 96, 32))
    for num_tokens in (1, 4, 20):
        x = torch.randn(num_tokens, 96)
        x[:, ::32] *= 2.0**12
        x[:, 1::32] *= 2.0**-12
        assert_close(of.linear(x.to(dtype)), x.to(dtype), of)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exponent", [-110, -60, 60, 95, 110])
def test_all_of_x_may_be_tiny_or_huge(exponent: int, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    for form in FORMATS:
        of = weights(form, (33, 96, 32))
        for num_tokens in (1, 4, 20):
            x = (torch.randn(num_tokens, 96) * 2.0**exponent).to(dtype)
            assert_close(of.linear(x), x, of)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_reads_x_in_any_layout(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    of = weights(form, (33, 96, 32))
    base = torch.randn(6, 40, 200).to(dtype)
    bias = torch.randn(33).to(dtype)
    for x in (
        base[..., :96],
        base[:, :5, 8:104],
        base[..., 1:97].transpose(0, 1),
        base[..., ::2][..., :96],
        base[0, 0, :96],
        base[0, :1, :96].expand(20, 96),
        base[None, :2, :3, :96],
        base.transpose(1, 2)[:, :96, :].transpose(1, 2),
    ):
        got = of.linear(x, bias)
        assert got.is_contiguous()
        assert torch.equal(got, of.linear(x.contiguous(), bias))
        assert got.shape == (*x.shape[:-1], 33)


@pytest.mark.usefixtures("isa")
def test_rows_that_meet_in_one_set_of_the_cache_are_right() -> None:
    torch.manual_seed(6)
    of = weights("w4", (32, 1024, 32))
    for num_tokens in (9, 33, 130):
        x = torch.randn(num_tokens, 1024).bfloat16()
        assert_close(of.linear(x), x, of)


@pytest.mark.usefixtures("isa")
def test_many_tokens_are_taken_in_runs() -> None:
    torch.manual_seed(7)
    of = weights("w8", (48, 2080, 32))
    x = torch.randn(450, 2080).bfloat16()
    assert_close(of.linear(x), x, of)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("form", FORMATS)
def test_empty_tensors_stay_empty(form: str) -> None:
    of = weights(form, (33, 96, 32))
    for dtype in DTYPES:
        assert of.linear(torch.empty(0, 96, dtype=dtype)).shape == (0, 33)
        assert of.linear(torch.empty(2, 0, 96, dtype=dtype)).shape == (2, 0, 33)


@pytest.mark.usefixtures("isa")
def test_weights_are_only_read() -> None:
    of = weights("w4-minimum", (33, 96, 32))
    before = [None if each is None else each.clone() for each in of.packed]
    x = torch.randn(20, 96).bfloat16()
    copy = x.clone()
    of.linear(x)
    assert torch.equal(x, copy)
    for each, old in zip(of.packed, before, strict=True):
        assert each is not None
        assert old is not None
        assert torch.equal(each, old)


@pytest.mark.usefixtures("compiled")
def test_arguments_that_do_not_fit_are_named() -> None:
    of = weights("w4-minimum", (33, 96, 32))
    weight, scale, minimum = of.packed
    assert weight is not None
    assert scale is not None
    assert minimum is not None
    x = torch.randn(2, 96)
    call = w4a16.linear_w4a16
    cases = {
        "`weight` must be a CPU uint8 matrix of 33 x 48": lambda: call(x, weight[:, 1:], scale),
        "`scale` must be a CPU float16 matrix of 33 x 3": lambda: call(x, weight, scale[1:]),
        "`minimum` must be a CPU float16 matrix of 33 x 3": lambda: call(
            x, weight, scale, minimum.float()
        ),
        "`bias` must be a vector of 33 elements of x's dtype": lambda: call(
            x, weight, scale, bias=torch.ones(33).half()
        ),
        "`group_size` must be 16, 32, 64 or 128, not 24": lambda: call(
            x, weight, scale, group_size=24
        ),
        "rows of 96 elements are not divided by `group_size` 64": lambda: call(
            x, weight, scale, group_size=64
        ),
        "`x` must be float32, bfloat16 or float16": lambda: call(x.double(), weight, scale),
    }
    for message, wrong in cases.items():
        with pytest.raises(RuntimeError, match=message):
            wrong()


@pytest.mark.usefixtures("compiled")
def test_what_is_not_taken_is_refused_with_a_reason() -> None:
    x, weight = torch.randn(2, 96), torch.zeros(33, 48, dtype=torch.uint8)
    scale = torch.zeros(33, 3, dtype=torch.float16)
    supports = w4a16.supports_args
    assert supports(x, weight, scale, scale, torch.zeros(33)) is True
    assert supports(x, weight, scale, group_size=24) == "takes groups of 16, 32, 64, 128, not 24"
    assert supports(x, weight, scale.float()) == "needs a float16 `scale`, not float32"
    assert supports(x, weight, scale, scale.float()) == "needs a float16 `minimum`, not float32"
    assert supports(x, weight.char(), scale) == "needs a weight of uint8, not int8"
    assert w8a16.supports_args(x, weight, scale) == "needs a weight of int8, not uint8"
    assert supports(x, weight, scale, bias=scale[:, 0]) == (
        "needs one dtype for both; x has float32, bias float16"
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["linear_w4a16", "linear_w8a16"])
def test_layout_of_the_kernels_is_chosen(name: str, registry: ir.Registry) -> None:
    op = registry[name]
    arguments = op.generate_inputs(num_tokens=3, dtype=torch.bfloat16)
    with registry.priorities.override({name: ["vllm_c"]}):
        choice = op.choose_layout(*arguments)
        rejections = op.select(*arguments).rejections
    assert choice.layout == "panel16"
    assert choice.selection.provider == "vllm_c"
    assert "panel16" in rejections[0].reason
