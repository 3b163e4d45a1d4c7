"""Paged attention against attention written out: one query, one head, one key at a time."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.ops.paged_attention_inputs import paged_attention_inputs


class Call(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    cache: Tensor
    table: Tensor
    lengths: Tensor
    starts: Tensor
    slots: Tensor
    scale: float
    window: int | None


def _call(num_tokens: int, dtype: torch.dtype = torch.float32, **inputs: Any) -> Call:
    return Call(*paged_attention_inputs(num_tokens, dtype, **inputs))


def _reference(call: Call) -> Tensor:
    """Attention by definition, in float64, from the cache as the op left it."""
    expected = torch.zeros(call.query.shape, dtype=torch.float64)
    group = call.query.shape[1] // call.cache.shape[2]
    size = call.cache.shape[3]
    for request, length in enumerate(call.lengths.tolist()):
        first, end = call.starts[request : request + 2].tolist()
        blocks = call.table[request, [at // size for at in range(length)]].long()
        rows = torch.arange(length) % size
        keys, values = call.cache.double()[blocks, :, :, rows].unbind(1)
        for row in range(first, end):
            position = length - (end - row)
            oldest = 0 if call.window is None else max(0, position - call.window + 1)
            seen = slice(oldest, position + 1)
            for head in range(call.query.shape[1]):
                scores = keys[seen, head // group] @ call.query[row, head].double() * call.scale
                expected[row, head] = scores.softmax(0) @ values[seen, head // group]
    return expected


SHAPES: dict[str, dict[str, Any]] = {
    "one-decode": {"num_tokens": 1, "context": 33},
    # Lengths in several groups, groups above and below the size that is done one by one.
    "many-decodes": {"num_tokens": 24, "context": 130, "shortest": 3},
    "prefill": {"num_tokens": 20, "query_len": 20, "context": 20},
    "chunk-after-history": {"num_tokens": 12, "query_len": 6, "context": 40},
    "prefill-and-decode": {"num_tokens": 14, "query_len": (5, 1, 1, 1, 6), "context": 35},
    "window": {"num_tokens": 9, "context": 50, "shortest": 5, "sliding_window": 8},
    "window-in-prefill": {"num_tokens": 30, "query_len": 15, "context": 30, "sliding_window": 4},
    "window-of-one": {"num_tokens": 5, "context": 20, "sliding_window": 1},
    "blocks-of-one": {"num_tokens": 4, "context": 9, "block_size": 1},
    "one-key-head": {"num_tokens": 4, "heads": (4, 1), "head_size": 8},
    "no-groups": {"num_tokens": 4, "heads": (3, 3), "head_size": 8},
}


@pytest.mark.parametrize("inputs", SHAPES.values(), ids=SHAPES)
def test_attention_is_the_definition(inputs: dict[str, Any]) -> None:
    call = _call(**inputs)
    ir.ops.paged_attention(*call)
    torch.testing.assert_close(call.output.double(), _reference(call), atol=1e-5, rtol=1e-5)


def test_new_tokens_are_in_the_cache_and_nothing_else_changes() -> None:
    call = _call(14, query_len=(5, 1, 1, 1, 6), context=35)
    before = call.cache.clone()
    ir.ops.paged_attention(*call)
    slots = call.slots.tolist()
    by_slot = call.cache.permute(0, 3, 1, 2, 4).flatten(0, 1)
    assert torch.equal(by_slot[slots, 0], call.key)
    assert torch.equal(by_slot[slots, 1], call.value)
    others = sorted(set(range(len(by_slot))) - set(slots))
    unchanged = before.permute(0, 3, 1, 2, 4).flatten(0, 1)[others]
    assert torch.equal(by_slot[others].nan_to_num(7), unchanged.nan_to_num(7))


def test_padding_rows_are_neither_written_nor_read() -> None:
    padded, exact = _call(5, padding=3), _call(5)
    padded.output.fill_(42)
    # The padding's queries, keys and values are NaN; its slots are -1.
    ir.ops.paged_attention(*padded)
    ir.ops.paged_attention(*exact._replace(cache=(cache := exact.cache.clone())))
    assert (padded.output[5:] == 42).all()
    assert padded.output[:5].isfinite().all()
    assert padded.cache.isnan().sum() == cache.isnan().sum()


def test_request_without_keys_is_padding_too() -> None:
    call = _call(4, context=20)
    call.output.fill_(42)
    call.lengths[2] = 0
    call.slots[2] = -1
    ir.ops.paged_attention(*call)
    assert (call.output[2] == 42).all()
    assert call.output[[0, 1, 3]].isfinite().all()


def test_only_padding_changes_nothing() -> None:
    call = _call(3, context=20)
    call.slots.fill_(-1)
    call.lengths.zero_()
    before = call.cache.clone()
    ir.ops.paged_attention(*call)
    assert torch.equal(call.cache.nan_to_num(7), before.nan_to_num(7))
    assert not call.output.any()


def test_unused_cache_rows_do_not_leak_into_a_padded_group() -> None:
    call = _call(12, context=31, shortest=17)
    assert call.cache.isnan().any()
    ir.ops.paged_attention(*call)
    assert call.output.isfinite().all()


def test_decode_equals_the_last_row_of_a_prefill() -> None:
    prefill = _call(17, query_len=17, context=17)
    ir.ops.paged_attention(*prefill)
    decode = prefill._replace(
        query=prefill.query[-1:],
        key=prefill.key[-1:],
        value=prefill.value[-1:],
        output=torch.zeros_like(prefill.output[-1:]),
        starts=torch.tensor([0, 1], dtype=torch.int32),
        slots=prefill.slots[-1:],
    )
    ir.ops.paged_attention(*decode)
    torch.testing.assert_close(decode.output, prefill.output[-1:])


def test_shared_blocks_serve_two_requests() -> None:
    call = _call(2, context=33, shortest=33)
    call.table[1, :2] = call.table[0, :2]
    ir.ops.paged_attention(*call)
    torch.testing.assert_close(call.output.double(), _reference(call), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float32])
def test_cache_may_have_another_dtype_than_the_activations(cache_dtype: torch.dtype) -> None:
    call = _call(6, torch.float32, context=40, cache_dtype=cache_dtype)
    ir.ops.paged_attention(*call)
    assert call.output.dtype == torch.float32
    torch.testing.assert_close(call.output.double(), _reference(call), atol=1e-5, rtol=1e-5)


def test_cache_that_is_a_slice_of_a_wider_one_is_written_in_place() -> None:
    call = _call(6, context=40)
    wide = torch.stack((torch.zeros_like(call.cache), call.cache), dim=1)
    sliced = call._replace(cache=wide[:, 1], output=torch.zeros_like(call.output))
    ir.ops.paged_attention(*call)
    ir.ops.paged_attention(*sliced)
    assert torch.equal(sliced.output, call.output)
    assert torch.equal(wide[:, 1].nan_to_num(7), call.cache.nan_to_num(7))
    assert not wide[:, 0].any()


def test_bfloat16_attention_stays_within_its_tolerance() -> None:
    call = _call(24, torch.bfloat16, context=130, shortest=3)
    ir.ops.paged_attention(*call)
    tolerance = ir.ops.paged_attention.tolerance(torch.bfloat16)
    torch.testing.assert_close(
        call.output.double(), _reference(call), atol=tolerance.atol, rtol=tolerance.rtol
    )
