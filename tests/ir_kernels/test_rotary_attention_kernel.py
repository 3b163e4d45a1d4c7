"""rotary_paged_attention in C++: the bits of its two ops on every ISA, and nothing on an error."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.paged_attention.vllm_c import paged_attention
from ir_kernels.qk_norm_rope.vllm_c import qk_norm_rope
from ir_kernels.rotary_embedding.vllm_c import rotary_embedding
from ir_kernels.rotary_paged_attention.vllm_c import rotary_paged_attention

OP = ir.ops.rotary_paged_attention

pytestmark = pytest.mark.usefixtures("isa")


def call(num_tokens: int, dtype: torch.dtype, **inputs: Any) -> dict[str, Any]:
    """Arguments by name; queries, keys and values are slices of one row, as in a model."""
    values = OP.generate_inputs(num_tokens=num_tokens, dtype=dtype, **inputs)
    given = dict(zip(OP.schema.names, values, strict=True))
    names = ("x_query", "x_key", "x_value")
    sizes = [given[name].shape[1] for name in names]
    merged = torch.cat([given[name] for name in names], dim=1)
    return given | dict(zip(names, merged.split(sizes, dim=1), strict=True))


def copied(given: dict[str, Any]) -> dict[str, Any]:
    fresh = {name: given[name].clone() for name in ("output", "kv_cache")}
    return given | fresh


def in_two_ops(given: dict[str, Any]) -> None:
    head_size = given["x_query"].shape[-1]
    rotation = given["positions"], given["cos_sin_cache"], head_size, given["is_neox"]
    query, key, weights = given["x_query"], given["x_key"], given["query_weight"]
    if weights is None:
        query, key = rotary_embedding(query, key, *rotation)
    else:
        norm = weights, given["key_weight"], given["epsilon"]
        query, key = qk_norm_rope(query, key, *norm, *rotation)
    names = ir.ops.paged_attention.schema.names[2:]
    paged_attention(query, key, *(given[name] for name in names))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "inputs",
    [
        {"num_tokens": 1, "context": 33},
        {"num_tokens": 19, "query_len": (9, 1, 1, 1, 7)},
        {"num_tokens": 6, "normed": True},
        {"num_tokens": 6, "normed": True, "weight_dtype": torch.float32, "is_neox": False},
        {"num_tokens": 5, "rotary_size": 32, "sliding_window": 7},
        {"num_tokens": 5, "heads": (3, 3), "head_size": 10},
    ],
    ids=["decode", "mixed", "norms", "float32 weights", "part of a head", "odd"],
)
def test_bits_are_those_of_the_two_ops(inputs: dict[str, Any], dtype: torch.dtype) -> None:
    given = call(dtype=dtype, **inputs)
    mine, theirs = copied(given), copied(given)
    rotary_paged_attention(**mine)
    in_two_ops(theirs)
    for name in ("output", "kv_cache"):
        assert torch.equal(bits(mine[name]), bits(theirs[name])), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": torch.tensor([0, 1, 512])}, r"`positions\[2\]` is 512"),
        ({"positions": torch.tensor([0, 1])}, "vector of 3 int64"),
        ({"slot_mapping": torch.tensor([0, 1, 1 << 40])}, r"`slot_mapping\[2\]` is"),
        ({"query_weight": torch.ones(64)}, "both be there, or neither"),
    ],
    ids=["position", "positions", "slot", "one weight"],
)
def test_what_does_not_fit_is_an_error_and_nothing_is_written(
    changes: dict[str, Any], message: str
) -> None:
    given = call(3, torch.float32)
    broken = copied(given) | changes
    with pytest.raises(RuntimeError, match=message):
        rotary_paged_attention(**broken)
    for name in ("output", "kv_cache"):
        assert torch.equal(bits(broken[name]), bits(given[name])), name
