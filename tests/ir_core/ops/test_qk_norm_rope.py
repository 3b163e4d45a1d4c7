"""The meaning of qk_norm_rope: two norms of heads and a rotation, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _arguments(dtype: torch.dtype, **options: Any) -> tuple[Any, ...]:
    options = {"num_tokens": 7, "heads": (4, 2), "head_size": 16, **options}
    return ir.ops.qk_norm_rope.generate_inputs(dtype=dtype, **options)


def _composed(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, epsilon: float, *rest: Any
) -> tuple[Tensor, Tensor]:
    with ir.priority({"rms_norm": ["native"], "rotary_embedding": ["native"]}):
        query = ir.ops.rms_norm(query, query_weight, epsilon)
        key = ir.ops.rms_norm(key, key_weight, epsilon)
        return ir.ops.rotary_embedding(query, key, *rest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"is_neox": False}, {"rotary_size": 6}, {"weight_dtype": torch.float32}],
    ids=["halves", "pairs", "part of the head", "float32 weight"],
)
def test_op_is_two_norms_and_a_rotation_bit_for_bit(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    arguments = _arguments(dtype, **options)
    with ir.priority({"qk_norm_rope": ["native"]}):
        got = ir.ops.qk_norm_rope(*arguments)
    for mine, theirs in zip(got, _composed(*arguments), strict=True):
        assert mine.is_contiguous()
        assert torch.equal(mine, theirs)


def test_each_head_is_normalised_alone_and_by_its_own_weight() -> None:
    query, key, _, _, epsilon, _, *rest = _arguments(torch.float32)
    still = torch.zeros(7, dtype=torch.int64)
    weights = torch.full((16,), 2.0), torch.full((16,), 3.0)
    got = ir.ops.qk_norm_rope(query * 5, key, *weights, epsilon, still, *rest)
    for normal, size in zip(got, (2.0, 3.0), strict=True):
        root_mean_square = normal.square().mean(dim=-1).sqrt()
        torch.testing.assert_close(root_mean_square, torch.full_like(root_mean_square, size))


def test_position_outside_the_table_is_an_error() -> None:
    query, key, *weights, epsilon, positions, table, size, is_neox = _arguments(torch.float32)
    positions = positions.clone()
    positions[3] = table.shape[0]
    with pytest.raises((IndexError, RuntimeError)):
        ir.ops.qk_norm_rope(query, key, *weights, epsilon, positions, table, size, is_neox)
