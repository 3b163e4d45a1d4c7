"""embedding_w8a16 in C++: every bit against float64, and ids that are no rows."""

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.embedding_w8a16.vllm_c import embedding_w8a16, supports_args

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def table(rows: int, width: int, group_size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    weight = torch.randint(-128, 128, (rows, width), dtype=torch.int8)
    return weight, (torch.randn(rows, width // group_size) / 64).half()


def packed(weight: Tensor, scale: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(1, dtype=torch.int64)
    call = (ids, weight.clone(), scale.clone(), torch.float32, group_size, "plain")
    values = ir.ops.embedding_w8a16.pack(call, "panel16")
    return values[1], values[2]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "group_size"),
    [(1, 16, 16), (16, 32, 32), (17, 48, 16), (50, 192, 64), (33, 256, 128)],
)
def test_rows_are_exact(rows: int, width: int, group_size: int, dtype: torch.dtype) -> None:
    weight, scale = table(rows, width, group_size)
    ids = torch.randint(rows, (3 * rows,))
    ids[0], ids[1] = 0, rows - 1
    values = weight.double() * scale.double().repeat_interleave(group_size, 1)
    got = embedding_w8a16(ids, *packed(weight, scale, group_size), dtype, group_size, "panel16")
    assert got.dtype == dtype
    assert torch.equal(got, values[ids].to(dtype))


@pytest.mark.usefixtures("isa")
def test_ids_may_have_a_stride_or_be_none_at_all() -> None:
    weight, scale = table(33, 64, 32)
    tensors = packed(weight, scale, 32)
    ids = torch.randint(33, (20, 3))
    got = embedding_w8a16(ids[:, 1], *tensors, torch.float32)
    assert torch.equal(got, embedding_w8a16(ids[:, 1].contiguous(), *tensors, torch.float32))
    assert embedding_w8a16(ids[:0, 0], *tensors, torch.bfloat16).shape == (0, 64)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("wrong", [-1, 33, 2**40])
def test_an_id_that_is_no_row_is_named(wrong: int) -> None:
    weight, scale = table(33, 64, 32)
    ids = torch.tensor([3, wrong])
    with pytest.raises(RuntimeError, match=rf"`input_ids\[1\]` is {wrong}, but .* has 33 rows"):
        embedding_w8a16(ids, *packed(weight, scale, 32), torch.float32)


@pytest.mark.usefixtures("compiled")
def test_what_is_not_taken_is_refused_with_a_reason() -> None:
    weight, scale = table(33, 48, 16)
    ids = torch.zeros(1, dtype=torch.int64)
    assert supports_args(ids, weight, scale, torch.float16, 16) is True
    assert supports_args(ids.int(), weight, scale, torch.float16, 16) == (
        "needs int64 ids, not int32"
    )
    assert supports_args(ids, weight, scale, torch.float64, 16) == (
        "makes float32, bfloat16, float16, not float64"
    )
    assert supports_args(ids, weight, scale, torch.float16, 24) == (
        "takes groups of 16, 32, 64, 128, not 24"
    )
