"""linear_w8a8 in C++: on every ISA the bits of native, whatever the bytes and the shape."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.linear_w8a8.vllm_c import linear_w8a8, supports_args

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Blocks of one, two and several sizes on every ISA, and what is left of them.
TOKENS = (0, 1, 2, 3, 7, 17, 33, 64)
# (outputs, inputs): rows of less than a unit; whole and partial panels, an odd number of them and
# an even one, each with rows of whole units, of some more, and of no whole vector; units that no
# number of chains divides.
SHAPES = (
    (1, 1),
    (5, 3),
    (16, 4),
    (16, 64),
    (17, 66),
    (32, 65),
    (33, 100),
    (48, 64),
    (48, 67),
    (80, 132),
    (35, 1030),
)


@dataclass(frozen=True, slots=True)
class Call:
    """Plain arguments of a call."""

    x: Tensor
    x_scale: Tensor
    weight: Tensor
    weight_scale: Tensor
    dtype: torch.dtype
    bias: Tensor | None = None

    def native(self) -> Tensor:
        return ir.ops.linear_w8a8.native(*self._values(), "plain")

    def kernel(self) -> Tensor:
        plain = (*self._values(), "plain")
        copies = (each.clone() if isinstance(each, Tensor) else each for each in plain)
        weight = ir.ops.linear_w8a8.pack(tuple(copies), "panel16")[2]
        return linear_w8a8(
            self.x, self.x_scale, weight, self.weight_scale, self.dtype, self.bias, "panel16"
        )

    def _values(self) -> tuple[Tensor | torch.dtype | None, ...]:
        return self.x, self.x_scale, self.weight, self.weight_scale, self.dtype, self.bias


def bytes_of(*shape: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=random, dtype=torch.int8)


def make(num_tokens: int, shape: tuple[int, int], dtype: torch.dtype, *, biased: bool) -> Call:
    random = torch.Generator().manual_seed(num_tokens)
    return Call(
        x=bytes_of(num_tokens, shape[1], seed=1),
        x_scale=torch.rand(num_tokens, 1, generator=random),
        weight=bytes_of(*shape, seed=2),
        weight_scale=torch.randn(shape[0], generator=random) * 1e-3,
        dtype=dtype,
        bias=torch.randn(shape[0], generator=random).to(dtype) if biased else None,
    )


def assert_same_bits(call: Call) -> None:
    got, expected = call.kernel(), call.native()
    assert got.dtype == call.dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_gives_the_bits_of_native(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for num_tokens in TOKENS:
        assert_same_bits(make(num_tokens, shape, dtype, biased=num_tokens % 2 == 1))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("of_x", [-128, 127])
@pytest.mark.parametrize("of_weight", [-128, 127])
def test_the_greatest_sums_do_not_saturate(of_x: int, of_weight: int) -> None:
    inner = 131071
    ones = torch.ones(3, 1)
    call = Call(
        x=torch.full((3, inner), of_x, dtype=torch.int8),
        x_scale=ones,
        weight=torch.full((17, inner), of_weight, dtype=torch.int8),
        weight_scale=torch.ones(17),
        dtype=torch.float32,
    )
    expected = torch.tensor(of_x * of_weight * inner, dtype=torch.float64).float()
    assert torch.equal(call.kernel(), expected.expand(3, 17))


@pytest.mark.usefixtures("isa")
def test_neighbours_of_opposite_extremes_do_not_saturate() -> None:
    """Sums of two and of four products that no 16 bits hold, one after the other."""
    signs = torch.tensor([1, 1, -1, -1, -1, 1, 1, -1]).repeat(16)
    x = torch.where(signs > 0, 127, -128).to(torch.int8)
    weight = torch.stack([x, x.flip(0), torch.full_like(x, -128), torch.full_like(x, 127)])
    for num_tokens in (1, 2, 5, 16):
        ones = torch.ones(num_tokens, 1)
        assert_same_bits(
            Call(x.expand(num_tokens, -1).clone(), ones, weight, torch.ones(4), torch.float32)
        )


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_that_are_no_ordinary_numbers_give_what_native_gives(dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, 1e-45, 1e-38, 3e38, torch.inf, -torch.inf, torch.nan, 1.0])
    call = make(9, (20, 66), dtype, biased=True)
    assert_same_bits(
        Call(
            call.x,
            special[:, None].clone(),
            call.weight,
            special.repeat(3)[:20].clone(),
            dtype,
            call.bias,
        )
    )


@pytest.mark.usefixtures("isa")
def test_reads_activations_in_any_layout() -> None:
    call = make(1, (33, 66), torch.bfloat16, biased=True)
    base, scales = bytes_of(6, 5, 140, seed=3), torch.rand(6, 5, 2)
    for x, x_scale in (
        (base[..., :66], scales[..., :1]),
        (base[:, 1:4, 7:73], scales[:, 1:4, 1:]),
        (base[..., :66].transpose(0, 1), scales[..., :1].transpose(0, 1)),
        (base[..., ::2][..., :66], scales[..., :1]),
        (base[0, 0, :66], scales[0, 0, :1]),
        (base[0, :1, :66].expand(20, 66), scales[0, :1, :1].expand(20, 1)),
        (base[None, :2, :3, :66], scales[None, :2, :3, :1]),
    ):
        each = Call(x, x_scale, call.weight, call.weight_scale, torch.bfloat16, call.bias)
        assert_same_bits(each)
        assert each.kernel().shape == (*x.shape[:-1], 33)


@pytest.mark.usefixtures("isa")
def test_work_that_is_split_between_threads_gives_the_same_bits() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_same_bits(make(130, (205, 1028), torch.bfloat16, biased=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("compiled")
def test_no_outputs_and_rows_of_nothing_are_sizes_like_others() -> None:
    call = make(3, (16, 8), torch.float32, biased=True)
    none = Call(call.x, call.x_scale, call.weight[:0], call.weight_scale[:0], torch.float32)
    assert none.kernel().shape == (3, 0)
    empty = Call(
        call.x[:, :0],
        call.x_scale,
        call.weight[:, :0].contiguous(),
        call.weight_scale,
        torch.float32,
        call.bias,
    )
    assert_same_bits(empty)


@pytest.mark.usefixtures("compiled")
def test_what_is_not_taken_is_refused_with_a_reason() -> None:
    call = make(2, (5, 8), torch.float16, biased=True)
    x, x_scale, weight, scale, bias = (
        call.x,
        call.x_scale,
        call.weight,
        call.weight_scale,
        call.bias,
    )
    assert supports_args(x, x_scale, weight, scale, torch.float16, bias) is True
    assert supports_args(x.to("meta"), x_scale, weight, scale, torch.float16) == (
        "runs on cpu, and the activations are on meta"
    )
    assert supports_args(x, x_scale, weight, scale, torch.float64) == (
        "makes float32, bfloat16, float16, not float64"
    )
    assert supports_args(x, x_scale.double(), weight, scale, torch.float16) == (
        "needs a float32 `x_scale`, not float64"
    )
    assert supports_args(x, x_scale, weight, scale.half(), torch.float16) == (
        "needs a float32 `weight_scale`, not float16"
    )
    assert supports_args(x, x_scale, weight, scale, torch.bfloat16, bias) == (
        "needs a bias of bfloat16, not float16"
    )
