"""The rowwise providers: native's values, and the same bits in every batch and every chunk."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.testing import assert_matches_native
from ir_kernels.linear.rowwise import linear
from ir_kernels.paged_attention.rowwise import paged_attention

DTYPES = (torch.float32, torch.bfloat16)
NAMES = ir.ops.paged_attention.schema.names


def attend(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Output and cache after the call; the arguments are left alone."""
    fresh: dict[str, Any] = {
        name: each.clone() if isinstance(each, Tensor) else each for name, each in arguments.items()
    }
    paged_attention(**fresh)
    return fresh["output"], fresh["kv_cache"]


def attention_arguments(dtype: torch.dtype, window: int | None) -> dict[str, Any]:
    """Three requests, of 9 new tokens, 1 and 4; one token of padding at the end."""
    values = ir.ops.paged_attention.generate_inputs(
        num_tokens=14,
        dtype=dtype,
        query_len=(9, 1, 4),
        context=50,
        shortest=20,
        sliding_window=window,
        padding=1,
    )
    return dict(zip(NAMES, values, strict=True))


def only(arguments: dict[str, Any], request: int, rows: slice, length: int) -> dict[str, Any]:
    """The part of a step that holds some new tokens of one request, which then has `length`."""
    count = rows.stop - rows.start
    by_token = ("x_query", "x_key", "x_value", "output", "slot_mapping")
    return arguments | {
        **{name: arguments[name][rows] for name in by_token},
        "block_table": arguments["block_table"][request : request + 1],
        "seq_lens": torch.tensor([length], dtype=torch.int32),
        "query_start_loc": torch.tensor([0, count], dtype=torch.int32),
    }


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_gives_a_token_the_same_bits_in_every_batch_and_chunk(
    dtype: torch.dtype, window: int | None
) -> None:
    arguments = attention_arguments(dtype, window)
    together, _ = attend(arguments)
    lengths: list[int] = arguments["seq_lens"].tolist()
    for request, (first, end) in enumerate(((0, 9), (9, 10), (10, 14))):
        cache = arguments["kv_cache"]
        for start in range(first, end, 2):
            rows = slice(start, min(start + 2, end))
            chunk = only(arguments, request, rows, lengths[request] - (end - rows.stop))
            alone, cache = attend(chunk | {"kv_cache": cache})
            assert torch.equal(alone, together[rows])
    assert (together[14:] == 0).all()


def test_attention_leaves_a_request_without_keys_alone() -> None:
    arguments = attention_arguments(torch.float32, None)
    arguments["seq_lens"][1] = 0
    output, _ = attend(arguments)
    assert (output[9] == 0).all()
    assert (output[:9] != 0).any(dim=-1).all()


@pytest.mark.parametrize("shape", [(16,), (0, 16), (2, 3, 16), (5, 0)])
def test_linear_keeps_the_leading_dims(shape: tuple[int, ...]) -> None:
    weight, bias = torch.randn(8, shape[-1]), torch.randn(8)
    out = linear(torch.ones(shape), weight, bias)
    torch.testing.assert_close(out, torch.nn.functional.linear(torch.ones(shape), weight, bias))


@pytest.mark.parametrize("name", ["linear", "paged_attention"])
def test_batch_invariance_finds_them_where_no_priority_names_them(
    name: str, registry: ir.Registry
) -> None:
    registry.set_batch_invariant(True)
    arguments = registry[name].generate_inputs(num_tokens=3, dtype=torch.bfloat16)
    assert "rowwise" in registry.candidates(registry[name])
    # Where there is a C++ library, `in_order` stands before it, of `linear` for packed weights.
    before = {"linear": ["rowwise"], "paged_attention": ["in_order", "rowwise"]}[name]
    assert registry[name].select(*arguments).provider in before
    assert_matches_native(registry[name].implementations["rowwise"], *arguments)
