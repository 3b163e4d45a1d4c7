"""rotary_embedding in C++: values, slices of a merged qkv, partial rotation, bounds."""

import pytest
import torch
from torch import Tensor
from ulp import max_ulp

import ir_core as ir
from ir_kernels.rotary_embedding.vllm_c import rotary_embedding

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_POSITION = 128

pytestmark = pytest.mark.usefixtures("isa")


def table(rotated: int) -> Tensor:
    frequency = 10000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angle = torch.arange(MAX_POSITION)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def native(query: Tensor, key: Tensor, positions: Tensor, rotated: int, size: int, neox: bool):
    return ir.ops.rotary_embedding.native(query, key, positions, table(rotated), size, neox)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("size", "rotated"),
    [(64, 64), (128, 64), (6, 6), (2, 2), (80, 32), (96, 70)],
    ids=["whole", "part", "odd half", "one pair", "one block", "uneven"],
)
def test_is_native_bit_for_bit(size: int, rotated: int, is_neox: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(9, 5 * size).to(dtype), torch.randn(9, 2 * size).to(dtype)
    positions = torch.randint(MAX_POSITION, (9,))
    expected = native(query, key, positions, rotated, size, is_neox)
    got = rotary_embedding(query, key, positions, table(rotated), size, is_neox)
    # torch may contract a product and a sum in float32; 16-bit results come out the same.
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
        if dtype != torch.float32:
            assert max_ulp(mine, theirs) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
def test_reads_slices_of_a_merged_qkv_and_writes_nothing(is_neox: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    qkv = torch.randn(7, (4 + 2 + 2) * 16).to(dtype)
    positions = torch.randint(MAX_POSITION, (7,))
    before = qkv.clone()
    query, key, _ = qkv.split([64, 32, 32], dim=-1)
    expected = rotary_embedding(
        query.contiguous(), key.contiguous(), positions, table(16), 16, is_neox
    )
    got = rotary_embedding(query, key, positions, table(16), 16, is_neox)
    assert all(each.is_contiguous() for each in got)
    assert all(torch.equal(*each) for each in zip(got, expected, strict=True))
    assert torch.equal(qkv, before)


def test_three_dims_and_other_layouts_give_the_same() -> None:
    torch.manual_seed(2)
    query, key = torch.randn(5, 3, 16), torch.randn(5, 1, 16)
    positions = torch.randint(MAX_POSITION, (5,))
    wide = torch.randn(5, 3, 32)
    layouts = {
        "three dims": query,
        "heads first": query.transpose(0, 1).contiguous().transpose(0, 1),
        "padded heads": wide[..., :16].copy_(query),
        "every other element": torch.empty(5, 3, 32)[..., ::2].copy_(query),
        "gapped tokens": torch.empty(10, 3, 16)[::2].copy_(query),
        "one token expanded": query[:1].expand(5, 3, 16),
    }
    for name, each in layouts.items():
        got = rotary_embedding(each, key, positions, table(16), 16)
        expected = native(each, key, positions, 16, 16, True)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6, msg=name)


def test_positions_may_be_strided() -> None:
    query, key = torch.randn(4, 16), torch.randn(4, 16)
    pairs = torch.randint(MAX_POSITION, (4, 2))
    strided = rotary_embedding(query, key, pairs[:, 1], table(16), 16)
    dense = rotary_embedding(query, key, pairs[:, 1].contiguous(), table(16), 16)
    assert all(torch.equal(*each) for each in zip(strided, dense, strict=True))


def test_table_may_be_a_slice_of_a_wider_one() -> None:
    torch.manual_seed(3)
    query, key, positions = torch.randn(5, 32), torch.randn(5, 16), torch.arange(5)
    wide = table(16).repeat(1, 2)[:, :16]
    assert not wide.is_contiguous()
    got = rotary_embedding(query, key, positions, wide, 16)
    expected = rotary_embedding(query, key, positions, table(16), 16)
    assert all(torch.equal(*each) for each in zip(got, expected, strict=True))


@pytest.mark.parametrize("position", [MAX_POSITION, -1, 2**40])
def test_position_outside_the_table_is_an_error(position: int) -> None:
    query, key = torch.randn(3, 16), torch.randn(3, 16)
    positions = torch.tensor([0, 1, position])
    with pytest.raises(RuntimeError, match=rf"`positions\[2\]` is {position}, .* has 128 rows"):
        rotary_embedding(query, key, positions, table(16), 16)


def test_no_tokens_is_no_work() -> None:
    empty = torch.empty(0, 32)
    got = rotary_embedding(empty, empty, torch.empty(0, dtype=torch.int64), table(16), 16)
    assert [each.shape for each in got] == [(0, 32), (0, 32)]


def test_arguments_that_do_not_fit_are_named() -> None:
    query, key = torch.randn(3, 32), torch.randn(3, 32)
    positions = torch.zeros(3, dtype=torch.int64)
    cases = {
        "`query` must be .*heads, 24": (query, key, positions, table(16), 24),
        "`key` must be": (query, key[None, None], positions, table(16), 16),
        "`head_size` must be positive": (query, key, positions, table(16), 0),
        "as many tokens": (query, key[:2], positions, table(16), 16),
        "vector of 3 int64": (query, key, positions.int(), table(16), 16),
        "`cos_sin_cache` must be a float32 matrix": (query, key, positions, table(16).half(), 16),
        "`cos_sin_cache` has 32 columns": (query, key, positions, table(32), 16),
    }
    for message, arguments in cases.items():
        with pytest.raises(RuntimeError, match=message):
            rotary_embedding(*arguments)
