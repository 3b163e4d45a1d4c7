"""Inputs and workloads of paged attention. Fills every unused cache row with NaN, so leaks show."""

from typing import Any

import torch
from torch import Tensor

from ir_core.ops.workload import Workload

_CONTEXTS = tuple(
    Workload(
        f"context-{context}-{num_tokens}",
        "decode reads every key and value once",
        {"num_tokens": num_tokens, "context": context},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    )
    for context, num_tokens in ((128, 1), (1024, 1), (8192, 1), (1024, 32))
)

WORKLOADS = (
    *_CONTEXTS,
    Workload(
        "one-decode",
        "one request at a usual context",
        {"num_tokens": 1, "context": 200},
        bench=True,
    ),
    Workload(
        "decode",
        "lengths that differ: grouping and padding",
        {"num_tokens": 32, "context": 350, "shortest": 100},
        bench=True,
    ),
    Workload(
        "prefill",
        "no history",
        {"num_tokens": 128, "query_len": 128, "context": 128},
        bench=True,
    ),
    Workload(
        "chunk", "new tokens after history", {"num_tokens": 24, "query_len": 12, "context": 45}
    ),
    Workload(
        "mixed", "prefill and decode in one batch", {"num_tokens": 19, "query_len": (9, 1, 1, 1, 7)}
    ),
    Workload(
        "window", "older keys are hidden", {"num_tokens": 8, "context": 70, "sliding_window": 20}
    ),
    Workload(
        "window-chunk",
        "a window inside a chunk",
        {"num_tokens": 30, "query_len": 30, "context": 61, "sliding_window": 7},
    ),
    Workload(
        "block-edge", "lengths at a block's end", {"num_tokens": 4, "context": 32, "shortest": 32}
    ),
    Workload(
        "block-bounds",
        "lengths one below, at and one above a block's end",
        {"num_tokens": 3, "context": 17, "shortest": 15},
    ),
    Workload(
        "chunk-at-bound",
        "new tokens that begin and end at a block's bounds",
        {"num_tokens": 32, "query_len": 16, "context": 48},
    ),
    Workload(
        "chunk-over-bound",
        "new tokens that cross a block's bounds by one",
        {"num_tokens": 34, "query_len": 17, "context": 33},
    ),
    Workload("one-slot-blocks", "a block per key", {"num_tokens": 3, "block_size": 1}),
    Workload(
        "long",
        "more keys than one thread should read",
        {"num_tokens": 3, "context": 1500, "heads": (4, 2)},
    ),
    Workload(
        "long-window",
        "a window that ends inside a block of a long context",
        {"num_tokens": 2, "context": 1501, "heads": (2, 1), "sliding_window": 1000},
    ),
    Workload(
        "sharp",
        "scores whose exponentials overflow",
        {"num_tokens": 4, "context": 33, "sharpness": 8.0},
    ),
    Workload(
        "odd-values",
        "NaN, infinities and denormals among one request's values stay its own",
        {"num_tokens": 4, "context": 20, "odd_values": True},
    ),
    Workload("first-token", "one key", {"num_tokens": 3, "context": 1}),
    Workload(
        "padded", "rows past the last request", {"num_tokens": 5, "context": 40, "padding": 3}
    ),
    Workload("wide-group", "eight query heads a key head", {"num_tokens": 4, "heads": (8, 1)}),
    Workload("head-80", "five vectors of sixteen", {"num_tokens": 3, "head_size": 80}),
    Workload("head-128", "a large head", {"num_tokens": 3, "head_size": 128, "heads": (4, 2)}),
    Workload(
        "odd-heads", "sizes no vector divides", {"num_tokens": 5, "heads": (3, 3), "head_size": 10}
    ),
)


def paged_attention_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    query_len: int | tuple[int, ...] = 1,
    context: int = 40,
    shortest: int | None = None,
    heads: tuple[int, int] = (9, 3),
    head_size: int = 64,
    block_size: int = 16,
    cache_dtype: torch.dtype | None = None,
    sliding_window: int | None = None,
    padding: int = 0,
    sharpness: float = 1.0,
    odd_values: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    """Arguments of `paged_attention` for `num_tokens` new tokens and `padding` rows after them.

    Requests bring `query_len` new tokens each (the last what is left) and have between `shortest`
    and `context` keys, new ones included. Scores have a deviation of `sharpness` squared.
    """
    random = torch.Generator().manual_seed(seed)
    queries = _query_lens(num_tokens, query_len)
    lengths = _lengths(queries, shortest or context, context)
    table, num_blocks = _block_table(lengths, block_size, random)
    slots = _slots(queries, lengths, table, block_size)
    rows = num_tokens + padding

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    query, key = normal(rows, heads[0], head_size), normal(rows, heads[1], head_size)
    value = normal(rows, heads[1], head_size)
    for tensor in (query, key, value):
        tensor[num_tokens:] = torch.nan
    if odd_values:
        tiny = torch.finfo(dtype).tiny / 2
        value[:1, :, :5] = torch.tensor([torch.nan, torch.inf, -torch.inf, tiny, -tiny])
    cache = _cache((num_blocks, 2, heads[1], block_size, head_size), lengths, table, random)
    return (
        query,
        key,
        value,
        torch.zeros_like(query),
        cache.to(cache_dtype or dtype),
        table,
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        torch.tensor(slots + [-1] * padding, dtype=torch.int64),
        head_size**-0.5 * sharpness**2,
        sliding_window,
    )


def _query_lens(num_tokens: int, query_len: int | tuple[int, ...]) -> list[int]:
    if isinstance(query_len, tuple):
        if sum(query_len) == num_tokens:
            return list(query_len)
        query_len = max(query_len)
    full, rest = divmod(num_tokens, query_len)
    return [query_len] * full + [rest] * (rest > 0)


def _lengths(queries: list[int], shortest: int, longest: int) -> list[int]:
    spread = longest - shortest + 1
    # 37 is prime to the spreads in use, so neighbours differ and every bucket is met.
    return [max(count, longest - i * 37 % spread) for i, count in enumerate(queries)]


def _block_table(
    lengths: list[int], block_size: int, random: torch.Generator
) -> tuple[Tensor, int]:
    """Blocks dealt in random order, two spare ones; unused entries are 0 as in an engine."""
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + 2
    order = torch.randperm(num_blocks, generator=random).split([*counts, 2])
    table = torch.zeros(len(lengths), max([*counts, 1]) + 1, dtype=torch.int32)
    for row, blocks in zip(table, order, strict=False):
        row[: len(blocks)] = blocks
    return table, num_blocks


def _slots(queries: list[int], lengths: list[int], table: Tensor, block_size: int) -> list[int]:
    return [
        int(row[position // block_size]) * block_size + position % block_size
        for count, length, row in zip(queries, lengths, table, strict=True)
        for position in range(length - count, length)
    ]


def _cache(
    shape: tuple[int, ...], lengths: list[int], table: Tensor, random: torch.Generator
) -> Tensor:
    cache = torch.full(shape, torch.nan)
    block_size = shape[3]
    for length, row in zip(lengths, table, strict=True):
        for start in range(0, length, block_size):
            used = cache[int(row[start // block_size]), :, :, : min(block_size, length - start)]
            used.copy_(torch.randn(used.shape, generator=random))
    return cache
