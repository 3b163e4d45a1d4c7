"""The in_order providers: bits that depend on neither the batch nor on what a rank holds of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.testing import assert_matches_native
from ir_kernels import library
from ir_kernels.linear.in_order import linear
from ir_kernels.paged_attention.in_order import paged_attention

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of 16 rows a panel, 640 columns a chunk and 256 a chunk of wide ones.
SHAPES = ((48, 64), (37, 45), (18, 1), (50, 1301), (1, 700))
NUM_TOKENS = 70
NAMES = ir.ops.paged_attention.schema.names
HEADS = ("x_query", "x_key", "x_value", "output")

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """By weights that are packed as a model's are, in a copy."""
    return linear(*ir.ops.linear.pack((x, weight.clone(), bias.clone(), "plain"), "panel16"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("isa")
def test_linear_gives_an_output_the_same_bits_among_any_others(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    x, weight, bias = ir.ops.linear.generate_inputs(
        num_tokens=NUM_TOKENS, dtype=dtype, shape=shape, biased=True
    )[:3]
    whole = product(x, weight, bias)
    half = shape[0] // 2
    for rows in (slice(0, half), slice(half, None), slice(shape[0] - 1, None)):
        for tokens in (slice(0, 1), slice(7, 9), slice(3, 8), slice(1, 34), slice(None)):
            part = product(x[tokens], weight[rows], bias[rows])
            assert torch.equal(part, whole[tokens, rows]), (rows, tokens)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_sums_one_product_after_the_other(dtype: torch.dtype) -> None:
    """A large value that is added first takes the small ones' last bits, each by itself."""
    inputs = 2000
    x, weight = torch.ones(1, inputs, dtype=dtype), torch.zeros(1, inputs, dtype=dtype)
    weight[0, 1:] = 2.0**-12
    weight[0, 0] = 2.0**13
    wanted = torch.full((1, 1), 2.0**13, dtype=dtype)
    for tokens in (1, 40):
        got = product(x.expand(tokens, -1).contiguous(), weight, torch.zeros(1, dtype=dtype))
        assert torch.equal(got, wanted.expand(tokens, 1))


def arguments_of(dtype: torch.dtype, window: int | None, **shape: Any) -> dict[str, Any]:
    """Three requests, of 9 new tokens, 1 and 4, with up to 300 keys; one token of padding."""
    values = ir.ops.paged_attention.generate_inputs(
        num_tokens=14,
        dtype=dtype,
        query_len=(9, 1, 4),
        context=300,
        shortest=20,
        sliding_window=window,
        padding=1,
        **shape,
    )
    return dict(zip(NAMES, values, strict=True))


def attend(arguments: dict[str, Any]) -> Tensor:
    """The output; the arguments are left alone."""
    fresh: dict[str, Any] = {
        name: each.clone() if isinstance(each, Tensor) else each for name, each in arguments.items()
    }
    paged_attention(**fresh)
    return fresh["output"]


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("isa")
def test_attention_gives_a_token_the_same_bits_in_every_batch_and_chunk(
    dtype: torch.dtype, window: int | None, threads: Callable[[int], None]
) -> None:
    arguments = arguments_of(dtype, window)
    threads(1)
    together = attend(arguments)
    threads(3)
    assert torch.equal(attend(arguments), together)
    lengths: list[int] = arguments["seq_lens"].tolist()
    paged_attention(**arguments)  # writes every key, of which a chunk writes some again
    for request, (first, end) in enumerate(((0, 9), (9, 10), (10, 14))):
        for start in range(first, end, 2):
            rows = slice(start, min(start + 2, end))
            length = lengths[request] - (end - rows.stop)
            assert torch.equal(attend(only(arguments, request, rows, length)), together[rows])


def only(arguments: dict[str, Any], request: int, rows: slice, length: int) -> dict[str, Any]:
    """The part of a step that holds some new tokens of one request, which then has `length`."""
    return arguments | {
        **{name: arguments[name][rows] for name in (*HEADS, "slot_mapping")},
        "block_table": arguments["block_table"][request : request + 1],
        "seq_lens": torch.tensor([length], dtype=torch.int32),
        "query_start_loc": torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
    }


@pytest.mark.parametrize("group", [1, 3, 8, 12])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("isa")
def test_attention_gives_a_head_the_same_bits_among_any_others(
    dtype: torch.dtype, group: int
) -> None:
    """As when ranks divide key heads, and the query heads of one."""
    arguments = arguments_of(dtype, None, heads=(5 * group, 5))
    together = attend(arguments)
    for key in (0, 2, 4):
        for width in {1, group, (group + 1) // 2}:
            queries = slice(key * group, key * group + width)
            part = arguments | {
                "x_query": arguments["x_query"][:, queries],
                "output": arguments["output"][:, queries],
                "x_key": arguments["x_key"][:, key : key + 1],
                "x_value": arguments["x_value"][:, key : key + 1],
                "kv_cache": arguments["kv_cache"][:, :, key : key + 1],
            }
            assert torch.equal(attend(part), together[:, queries]), (key, width)


@pytest.mark.parametrize("name", ["linear", "paged_attention"])
def test_batch_invariance_finds_them_where_no_priority_names_them(
    name: str, registry: ir.Registry
) -> None:
    registry.set_batch_invariant(True)
    op = registry[name]
    inputs = op.generate_inputs(num_tokens=3, dtype=torch.bfloat16)
    values = op.schema.bind(op.name, inputs, {})
    choice = op.choose_layout(*values)
    assert choice.selection.provider == "in_order"
    packed = op.pack(values, choice.layout) if op.weights else values
    assert_matches_native(op.implementations["in_order"], *packed)


def test_no_call_gets_them_otherwise(registry: ir.Registry) -> None:
    for name in ("linear", "paged_attention"):
        arguments = registry[name].generate_inputs(num_tokens=3, dtype=torch.float32)
        assert registry[name].choose_layout(*arguments).selection.provider != "in_order"
    assert library.availability() == (True, "")
