"""paged_attention in C++: values on every ISA, shapes and layouts, what stays untouched, errors."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_kernels.paged_attention.vllm_c import paged_attention

# float16 takes the way of float32; the caches of other dtypes and the head sizes cover it.
DTYPES = (torch.float32, torch.bfloat16)
ALL_DTYPES = (*DTYPES, torch.float16)
NAMES = ir.ops.paged_attention.schema.names
# Weights may be rounded to bfloat16, and outputs are.
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1e-2, 1e-2),
    torch.float16: (1e-3, 1e-3),
}

pytestmark = pytest.mark.usefixtures("isa")


def arguments(**options: Any) -> dict[str, Any]:
    """Named arguments of a call with NaN in every row of the cache that no request uses."""
    options = {"dtype": torch.float32} | options
    return dict(zip(NAMES, ir.ops.paged_attention.generate_inputs(**options), strict=True))


def attend(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Output and cache after the call; the arguments are left alone."""
    fresh: dict[str, Any] = {
        name: each.clone() if isinstance(each, Tensor) else each for name, each in call.items()
    }
    paged_attention(**fresh)
    return fresh["output"], fresh["kv_cache"]


def oracle(call: dict[str, Any]) -> Tensor:
    """Float64, from the definition; rows of no request keep what they hold."""
    out, cache = call["output"].double(), call["kv_cache"].clone()
    block_size, scale, window = cache.shape[3], call["scale"], call["sliding_window"]
    for token, slot in enumerate(call["slot_mapping"].tolist()):
        if slot >= 0:
            where = cache[slot // block_size, :, :, slot % block_size]
            where.copy_(torch.stack((call["x_key"][token], call["x_value"][token])))
    starts = call["query_start_loc"].tolist()
    for request, length in enumerate(call["seq_lens"].tolist()):
        first, end = starts[request], starts[request + 1]
        if length == 0 or first == end:
            continue
        place = torch.arange(length)
        blocks = call["block_table"][request][place // block_size]
        key, value = cache[blocks, :, :, place % block_size].double().permute(1, 2, 0, 3)
        query = call["x_query"][first:end].double().unflatten(1, (key.shape[0], -1))
        scores = torch.einsum("thgd,hkd->hgtk", query, key) * scale
        ahead = place - place[length - (end - first) :, None]
        hidden = (ahead > 0) if window is None else (ahead > 0) | (ahead <= -window)
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        out[first:end] = torch.einsum("hgtk,hkd->thgd", weights, value).flatten(1, 2)
    return out


def expect_oracle(call: dict[str, Any], what: str = "") -> None:
    out, _ = attend(call)
    atol, rtol = TOLERANCES[out.dtype]
    torch.testing.assert_close(
        out.double(),
        oracle(call),
        atol=atol,
        rtol=rtol,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


@contextmanager
def num_threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 20])
def test_lengths_at_block_and_tile_bounds(window: int | None, dtype: torch.dtype) -> None:
    for length in (1, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 257):
        options = {
            "context": length,
            "shortest": max(1, length - 3),
            "sliding_window": window,
        }
        expect_oracle(arguments(num_tokens=2, dtype=dtype, **options), f"decode at {length}")
        chunk = arguments(num_tokens=length, query_len=length, dtype=dtype, **options)
        expect_oracle(chunk, f"prefill of {length}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_query_heads_share_a_key_head(dtype: torch.dtype) -> None:
    for heads in (
        (1, 1),
        (4, 2),
        (9, 3),
        (8, 2),
        (5, 1),
        (6, 1),
        (14, 2),
        (8, 1),
        (34, 2),
        (11, 11),
    ):
        for query_len in (1, 2, 13, 70):
            options = {"context": query_len + 80, "heads": heads, "head_size": 32}
            call = arguments(num_tokens=2 * query_len, query_len=query_len, dtype=dtype, **options)
            expect_oracle(call, f"{heads} heads, {query_len} tokens")


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("head_size", [1, 2, 7, 10, 16, 33, 64, 80, 96, 112, 128, 255, 256])
def test_any_head_size(head_size: int, dtype: torch.dtype) -> None:
    for query_len in (1, 30):
        options = {"context": 70, "heads": (3, 1), "head_size": head_size}
        call = arguments(num_tokens=2 * query_len, query_len=query_len, dtype=dtype, **options)
        expect_oracle(call, f"{query_len} tokens")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 24, 32, 128, 200])
def test_any_block_size(block_size: int, dtype: torch.dtype) -> None:
    for window in (None, 21):
        options = {
            "context": 150,
            "shortest": 120,
            "block_size": block_size,
            "heads": (6, 2),
        }
        call = arguments(
            num_tokens=63,
            query_len=(1, 40, 1, 20, 1),
            dtype=dtype,
            sliding_window=window,
            **options,
        )
        expect_oracle(call, f"window {window}")


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("cache_dtype", ALL_DTYPES)
def test_cache_of_another_dtype(cache_dtype: torch.dtype, dtype: torch.dtype) -> None:
    for query_len in (1, 20):
        call = arguments(
            num_tokens=2 * query_len,
            query_len=query_len,
            context=90,
            dtype=dtype,
            cache_dtype=cache_dtype,
        )
        expect_oracle(call, f"{query_len} tokens")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2])
def test_work_is_divided_by_keys_and_by_requests(count: int, dtype: torch.dtype) -> None:
    shared: dict[str, Any] = {"dtype": dtype, "heads": (3, 3)}
    batches = {
        "one long request": {"num_tokens": 1, "context": 4099},
        "one long chunk": {"num_tokens": 21, "query_len": 21, "context": 3001},
        "long and short": {"num_tokens": 9, "context": 3000, "shortest": 1},
        "a window": {"num_tokens": 2, "context": 3000, "sliding_window": 1500},
        "a prompt": {"num_tokens": 700, "query_len": 700, "context": 700},
        "all at once": {
            "num_tokens": 163,
            "query_len": (1, 90, 1, 1, 70),
            "context": 2000,
        },
    }
    with num_threads(count):
        for name, batch in batches.items():
            expect_oracle(arguments(**shared, **batch), name)


def test_gives_the_same_bits_each_time() -> None:
    call = arguments(num_tokens=163, query_len=(1, 90, 1, 1, 70), context=2000)
    first, _ = attend(call)
    assert all(torch.equal(first, attend(call)[0]) for _ in range(5))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("cache_dtype", ALL_DTYPES)
def test_writes_the_cache_as_native_does(cache_dtype: torch.dtype, dtype: torch.dtype) -> None:
    for block_size in (5, 16):
        call = arguments(
            num_tokens=40,
            query_len=(1, 30, 9),
            padding=3,
            dtype=dtype,
            cache_dtype=cache_dtype,
            block_size=block_size,
        )
        _, cache = attend(call)
        ir.ops.paged_attention.native(**call)
        assert torch.equal(cache.nan_to_num(7.0), call["kv_cache"].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_no_request_stay(dtype: torch.dtype) -> None:
    call = arguments(num_tokens=24, query_len=(4, 1, 12, 7), padding=3, context=50, dtype=dtype)
    call["output"].fill_(3.0)
    call["seq_lens"][2] = 0
    out, _ = attend(call)
    untouched = torch.zeros(27, dtype=torch.bool)
    untouched[5:17] = untouched[24:] = True
    assert (out[untouched] == 3.0).all()
    assert (out[~untouched] != 3.0).any(dim=-1).all()
    expect_oracle(call)


def test_requests_without_new_tokens_and_no_requests_at_all() -> None:
    call = arguments(num_tokens=5, query_len=(4, 1), context=50)
    call["query_start_loc"] = torch.tensor([0, 4, 4], dtype=torch.int32)
    expect_oracle(call)
    nothing = call | {
        **{name: call[name][:0] for name in ("x_query", "x_key", "x_value", "output")},
        **{name: call[name][:0] for name in ("slot_mapping", "seq_lens", "block_table")},
        "query_start_loc": torch.zeros(1, dtype=torch.int32),
    }
    out, cache = attend(nothing)
    assert out.shape == (0, 9, 64)
    assert torch.equal(cache.nan_to_num(7.0), call["kv_cache"].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("query_len", [1, 20])
def test_values_that_are_not_finite_stay_in_their_request(
    query_len: int, dtype: torch.dtype
) -> None:
    call = arguments(num_tokens=3 * query_len, query_len=query_len, context=90, dtype=dtype)
    middle = slice(query_len, 2 * query_len)
    clean, _ = attend(call)
    for value in (torch.nan, torch.inf, -torch.inf):
        for name in ("x_query", "x_key", "x_value"):
            spoilt = call | {name: call[name].clone()}
            spoilt[name][middle] = value
            out, _ = attend(spoilt)
            assert torch.equal(out[:query_len], clean[:query_len])
            assert torch.equal(out[2 * query_len :], clean[2 * query_len :])
            assert not out[middle].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinite_element_leaves_its_neighbours_alone(dtype: torch.dtype) -> None:
    call = arguments(num_tokens=2, context=90, dtype=dtype)
    call["x_value"][:, :, 5] = torch.inf
    out, _ = attend(call)
    assert (out[..., 5] == torch.inf).all()
    expect_oracle(call)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("query_len", [1, 20])
def test_weights_at_the_ends_of_their_range(query_len: int, dtype: torch.dtype) -> None:
    call = arguments(num_tokens=query_len, query_len=query_len, context=200, dtype=dtype)
    for scale in (0.0, -0.2, 1e-6, 1.0):
        expect_oracle(call | {"scale": scale}, f"scale {scale}")


def strided(x: Tensor) -> dict[str, Tensor]:
    """The same values in other layouts."""
    tokens, heads, size = x.shape
    merged = torch.full((tokens, (heads + 2) * size), 100.0, dtype=x.dtype)
    merged[:, size : (heads + 1) * size] = x.flatten(1)
    layouts = {
        "slice of a merged qkv": merged[:, size : (heads + 1) * size].view(tokens, heads, size),
        "heads first": x.transpose(0, 1).contiguous().transpose(0, 1),
        "every other token": torch.empty(2 * tokens, heads, size, dtype=x.dtype)[::2].copy_(x),
        "every other element": torch.empty(tokens, heads, 2 * size, dtype=x.dtype)[..., ::2],
    }
    layouts["every other element"].copy_(x)
    return layouts


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_give_the_same(dtype: torch.dtype) -> None:
    call = arguments(num_tokens=22, query_len=(1, 20, 1), context=60, dtype=dtype)
    expected, cache = attend(call)
    names = ("x_query", "x_key", "x_value", "output")
    in_layouts = {name: strided(call[name]) for name in names}
    for layout in in_layouts["output"]:
        views: dict[str, Any] = {name: in_layouts[name][layout] for name in names}
        fresh = call | views
        fresh["kv_cache"] = call["kv_cache"].clone()
        paged_attention(**fresh)
        assert torch.equal(fresh["output"], expected), layout
        assert torch.equal(fresh["kv_cache"].nan_to_num(7.0), cache.nan_to_num(7.0)), layout


@pytest.mark.parametrize("dtype", DTYPES)
def test_cache_and_indices_may_be_slices(dtype: torch.dtype) -> None:
    call = arguments(num_tokens=22, query_len=(1, 20, 1), context=60, dtype=dtype)
    expected, cache = attend(call)
    shape = call["kv_cache"].shape
    wider = torch.full((*shape[:3], shape[3] + 1, shape[4] + 3), torch.nan, dtype=dtype)
    layers = torch.full((shape[0], 3, *shape[1:]), torch.nan, dtype=dtype)
    slices = {
        "wider rows": wider[..., :-1, 1:-2],
        "a layer of blocks of all layers": layers[:, 1],
        "every other element": torch.empty((*shape[:4], 2 * shape[4]), dtype=dtype)[..., ::2],
    }
    indices: dict[str, Any] = {
        "block_table": call["block_table"].repeat(1, 2)[:, : call["block_table"].shape[1]],
        "seq_lens": call["seq_lens"].repeat_interleave(2)[::2],
        "query_start_loc": call["query_start_loc"].repeat_interleave(3)[::3],
        "slot_mapping": call["slot_mapping"].repeat_interleave(2)[::2],
    }
    for name, view in slices.items():
        view.copy_(call["kv_cache"])
        slices_of: dict[str, Any] = {"kv_cache": view, "output": call["output"].clone()}
        fresh = call | indices | slices_of
        paged_attention(**fresh)
        assert torch.equal(fresh["output"], expected), name
        assert torch.equal(view.nan_to_num(7.0), cache.nan_to_num(7.0)), name


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        (
            "slot_mapping",
            3,
            10**6,
            r"`slot_mapping\[3\]` is 1000000, but `kv_cache` has \d+ slots",
        ),
        (
            "block_table",
            (1, 0),
            999,
            r"`block_table\[1, 0\]` is 999, but `kv_cache` has \d+ blocks",
        ),
        ("block_table", (2, 2), -1, r"`block_table\[2, 2\]` is -1, but"),
        ("seq_lens", 0, -1, r"`seq_lens\[0\]` is -1: not between 0 and the \d+ keys"),
        (
            "seq_lens",
            2,
            10**6,
            r"`seq_lens\[2\]` is 1000000: not between 0 and the \d+ keys",
        ),
        (
            "seq_lens",
            1,
            3,
            r"`seq_lens\[1\]` is 3, less than the request's 4 new tokens",
        ),
        ("query_start_loc", 0, -1, r"`query_start_loc\[0\]` is -1: negative"),
        (
            "query_start_loc",
            2,
            0,
            r"`query_start_loc\[2\]` is 0: not between 1, .* and 6",
        ),
        (
            "query_start_loc",
            3,
            7,
            r"`query_start_loc\[3\]` is 7: not between 5, .* and 6",
        ),
    ],
)
def test_index_out_of_bounds_is_an_error_and_nothing_is_written(
    name: str, place: Any, value: int, message: str
) -> None:
    call = arguments(num_tokens=6, query_len=(1, 4, 1), context=40)
    call[name][place] = value
    before = {key: each.clone() for key, each in call.items() if isinstance(each, Tensor)}
    with pytest.raises(RuntimeError, match=message):
        paged_attention(**call)
    for key, each in before.items():
        assert torch.equal(call[key].nan_to_num(7.0), each.nan_to_num(7.0)), key


def test_blocks_that_no_query_sees_may_be_anything() -> None:
    call = arguments(num_tokens=2, context=100, sliding_window=20)
    call["block_table"][:, :4] = -1
    expected, _ = attend(arguments(num_tokens=2, context=100, sliding_window=20))
    assert torch.equal(attend(call)[0], expected)


def test_arguments_that_do_not_fit_are_named() -> None:
    call = arguments(num_tokens=6, query_len=(1, 4, 1), context=40)
    cases: dict[str, dict[str, Any]] = {
        "`x_query` must be": {"x_query": call["x_query"].flatten(1)},
        r"`x_key` must be \[6, heads, 64\]": {"x_key": call["x_key"][:5]},
        r"`x_value` must be \[6, heads, 64\]": {"x_value": call["x_value"][..., :63]},
        "must have one dtype": {"x_key": call["x_key"].bfloat16()},
        "not a positive multiple": {"x_query": call["x_query"][:, :8]},
        "`x_value` must have as many heads": {"x_value": call["x_value"][:, :2]},
        "and `output` as many as `x_query`": {"output": call["output"][:, :8]},
        r"`kv_cache` must be \[blocks, 2, 3, block size, 64\]": {
            "kv_cache": call["kv_cache"][:, :, :2]
        },
        "`kv_cache` must be float32": {"kv_cache": call["kv_cache"].double()},
        "`output` is expanded": {"output": call["output"][:1].expand(6, 9, 64)},
        "`seq_lens` must be .* int32 .* has 3": {"seq_lens": call["seq_lens"].long()},
        "`block_table` must be .* has 3": {"block_table": call["block_table"][:2]},
        "`query_start_loc` must be .* has 4": {"query_start_loc": call["query_start_loc"][:3]},
        "`slot_mapping` must be .* int64 .* has 6": {"slot_mapping": call["slot_mapping"].int()},
        "`sliding_window` must be positive, not 0": {"sliding_window": 0},
    }
    for message, change in cases.items():
        with pytest.raises(RuntimeError, match=message):
            paged_attention(**(call | change))


def test_refuses_what_it_cannot_take(registry: ir.Registry) -> None:
    call = arguments(num_tokens=2)
    cases: dict[str, dict[str, Any]] = {
        "takes float32, bfloat16, float16; x has float64": {"x_query": call["x_query"].double()},
        "needs one dtype for both; x has float32, x_key bfloat16": {
            "x_key": call["x_key"].bfloat16()
        },
        "reads a cache of float32, bfloat16, float16; kv_cache has float64": {
            "kv_cache": call["kv_cache"].double()
        },
    }
    op = registry["paged_attention"]
    with registry.priorities.override({"paged_attention": ["vllm_c"]}):
        assert op.select(**call).provider == "vllm_c"
        for reason, change in cases.items():
            (rejection,) = op.select(**(call | change)).rejections
            assert (rejection.provider, rejection.reason) == ("vllm_c", reason)
