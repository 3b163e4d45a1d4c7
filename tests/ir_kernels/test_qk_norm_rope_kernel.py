"""qk_norm_rope in C++: what its two ops give, from slices of a merged qkv, and bounds."""

import pytest
import torch
from torch import Tensor
from ulp import max_ulp

import ir_core as ir
from ir_kernels.qk_norm_rope.vllm_c import qk_norm_rope
from ir_kernels.rms_norm.vllm_c import rms_norm
from ir_kernels.rotary_embedding.vllm_c import rotary_embedding

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_POSITION = 128
EPSILON = 1e-6

pytestmark = pytest.mark.usefixtures("isa")


def table(rotated: int) -> Tensor:
    frequency = 10000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angle = torch.arange(MAX_POSITION)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def heads(num_tokens: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Five query heads and two key heads of each token."""
    qkv = torch.randn(num_tokens, 5 + 2, size).to(dtype)
    return qkv[:, :5].contiguous(), qkv[:, 5:].contiguous()


def weights(size: int, of_query: torch.dtype, of_key: torch.dtype) -> tuple[Tensor, Tensor]:
    both = 1 + torch.randn(2, size) / 4
    return both[0].to(of_query), both[1].to(of_key)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("size", "rotated"),
    [(64, 64), (128, 64), (6, 6), (2, 2), (80, 32), (96, 70)],
    ids=["whole", "part", "odd half", "one pair", "one block", "uneven"],
)
def test_is_two_norms_and_a_rotation_bit_for_bit(
    size: int, rotated: int, is_neox: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    query, key = heads(9, size, dtype)
    rotation = torch.randint(MAX_POSITION, (9,)), table(rotated), size, is_neox
    for kinds in ((dtype, dtype), (dtype, torch.float32), (torch.float32, dtype)):
        query_weight, key_weight = weights(size, *kinds)
        got = qk_norm_rope(query, key, query_weight, key_weight, EPSILON, *rotation)
        expected = rotary_embedding(
            rms_norm(query, query_weight, EPSILON), rms_norm(key, key_weight, EPSILON), *rotation
        )
        assert all(torch.equal(*each) for each in zip(got, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_native_bit_for_bit_almost_everywhere(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    query, key = heads(64, 128, dtype)
    rotation = torch.randint(MAX_POSITION, (64,)), table(128), 128
    arguments = (query, key, *weights(128, dtype, dtype), EPSILON, *rotation)
    for mine, theirs in zip(
        qk_norm_rope(*arguments), ir.ops.qk_norm_rope.native(*arguments), strict=True
    ):
        assert (mine == theirs).float().mean() > 0.999


def test_float32_is_native_but_for_the_order_of_the_sum() -> None:
    torch.manual_seed(2)
    query, key = heads(16, 64, torch.float32)
    still = torch.zeros(16, dtype=torch.int64)
    arguments = (query, key, *weights(64, torch.float32, torch.float32), EPSILON, still, table(64))
    for mine, theirs in zip(
        qk_norm_rope(*arguments, 64), ir.ops.qk_norm_rope.native(*arguments, 64), strict=True
    ):
        assert max_ulp(mine, theirs) <= 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_layout_gives_the_same_and_is_left_as_it_is(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    both, rotation = weights(16, dtype, dtype), (torch.randint(MAX_POSITION, (6,)), table(16), 16)
    merged = torch.randn(6, (5 + 2 + 2) * 16).to(dtype)
    query, key = merged[:, :80].view(6, 5, 16), merged[:, 80:112].view(6, 2, 16)
    layouts = {
        "heads of a merged row": query,
        "heads first": query.transpose(0, 1).contiguous().transpose(0, 1),
        "every other element": torch.empty(6, 5, 32, dtype=dtype)[..., ::2].copy_(query),
        "one token expanded": query[:1].expand(6, 5, 16),
    }
    before = merged.clone()
    for name, each in layouts.items():
        got = qk_norm_rope(each, key, *both, EPSILON, *rotation)
        dense = qk_norm_rope(each.contiguous(), key.contiguous(), *both, EPSILON, *rotation)
        for mine, theirs in zip(got, dense, strict=True):
            assert mine.is_contiguous(), name
            assert torch.equal(mine, theirs), name
    assert torch.equal(merged, before)


def test_weights_and_table_may_be_strided() -> None:
    torch.manual_seed(4)
    query, key = heads(4, 16, torch.float32)
    both = torch.randn(16, 2)
    positions, wide = torch.arange(4), table(16).repeat(1, 2)[:, :16]
    got = qk_norm_rope(query, key, both[:, 0], both[:, 1], EPSILON, positions, wide, 16)
    dense = both.t().contiguous()
    expected = qk_norm_rope(query, key, dense[0], dense[1], EPSILON, positions, table(16), 16)
    assert all(torch.equal(*each) for each in zip(got, expected, strict=True))


@pytest.mark.parametrize("position", [MAX_POSITION, -1, 2**40])
def test_position_outside_the_table_is_an_error(position: int) -> None:
    query, key = heads(3, 16, torch.float32)
    both = weights(16, torch.float32, torch.float32)
    positions = torch.tensor([0, 1, position])
    with pytest.raises(RuntimeError, match=rf"`positions\[2\]` is {position}, .* has 128 rows"):
        qk_norm_rope(query, key, *both, EPSILON, positions, table(16), 16)


def test_no_tokens_is_no_work() -> None:
    query, key = heads(0, 16, torch.bfloat16)
    both = weights(16, torch.bfloat16, torch.float32)
    none = torch.empty(0, dtype=torch.int64)
    got = qk_norm_rope(query, key, *both, EPSILON, none, table(16), 16)
    assert [each.shape for each in got] == [(0, 5, 16), (0, 2, 16)]


def test_arguments_that_do_not_fit_are_named() -> None:
    query, key = heads(3, 16, torch.bfloat16)
    weight, positions = torch.ones(16).bfloat16(), torch.zeros(3, dtype=torch.int64)
    rest = EPSILON, positions, table(16), 16
    cases = {
        "`query` must be .*heads, 24": (query, key, weight, weight, *rest[:3], 24),
        "as many tokens": (query, key[:2], weight, weight, *rest),
        "`query_weight` must have the dtype": (query, key, weight.half(), weight, *rest),
        "`key_weight` must be a vector of 16": (query, key, weight, weight[:8], *rest),
        "vector of 3 int64": (query, key, weight, weight, EPSILON, positions[:2], *rest[2:]),
        "`cos_sin_cache` has 32 columns": (
            *(query, key, weight, weight, EPSILON, positions),
            *(table(32), 16),
        ),
    }
    for message, arguments in cases.items():
        with pytest.raises(RuntimeError, match=message):
            qk_norm_rope(*arguments)
