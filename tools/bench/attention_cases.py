"""Decoding by paged attention as cases: all providers, and torch's attention over keys in a row.

Shapes: R requests with one new token each, Hq query heads, H key heads, D head size, L keys of a
request, S block size, B blocks. The baseline neither writes the cache nor looks up a block.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import ir_core as ir
from ir_core.testing import CheckDeclined, require_selected
from serve_shim.huge_pages import HugePages
from serve_shim.models.weight_memory import WeightMemory
from tools.bench.contender import Case, Contender, num_copies
from tools.bench.providers import copied_into

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
_BLOCK = 16
_MAX_COPIES = 1024
_RANDOM_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key heads and the size of each."""

    query: int
    key: int
    size: int


def attention_cases(
    name: str, requests: int, contexts: Sequence[int], heads: Heads, footprint: int
) -> Iterator[Case]:
    """A case for each context, in a cache of the dtype `name` that all requests share."""
    torch.manual_seed(0)
    for context in contexts:
        sizes = _Sizes(requests, context, heads, DTYPES[name])
        copies = min(_MAX_COPIES, num_copies(sizes.num_bytes, footprint))
        contenders, declined = _providers(sizes, copies)
        contenders.insert(0, _baseline(sizes, copies))
        yield Case("paged_attention", name, f"{requests}x{context}", requests, contenders, declined)


@dataclass(frozen=True, slots=True)
class _Sizes:
    requests: int
    context: int
    heads: Heads
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values of all requests."""
        rows = 2 * self.requests * self.context * self.heads.key
        return rows * self.heads.size * self.dtype.itemsize

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape).to(self.dtype)


def _baseline(sizes: _Sizes, copies: int) -> Contender:
    """The query heads of a key head are rows of one matrix: no key is repeated for them."""
    heads = sizes.heads
    query = sizes.normal(sizes.requests, heads.key, heads.query // heads.key, heads.size)
    shape = (sizes.requests, heads.key, sizes.context, heads.size)
    keys_and_values = sizes.normal(*shape), sizes.normal(*shape)
    memory = WeightMemory()
    calls = [
        functools.partial(
            functional.scaled_dot_product_attention,
            query,
            *(copied_into(memory, each) for each in keys_and_values),
        )
        for _ in range(copies)
    ]
    return Contender("sdpa", calls, sizes.num_bytes, is_baseline=True)


def _providers(sizes: _Sizes, copies: int) -> tuple[list[Contender], list[tuple[str, str]]]:
    op = ir.ops.paged_attention
    calls = list(_arguments(sizes, copies))
    selected = op.select(*calls[0]).provider
    contenders: list[Contender] = []
    declined: list[tuple[str, str]] = []
    for name, implementation in op.implementations.items():
        try:
            require_selected(implementation, calls[0])
        except CheckDeclined as reason:
            declined.append((name, str(reason)))
            continue
        runs = [functools.partial(implementation.fn, *values) for values in calls]
        contenders.append(Contender(name, runs, sizes.num_bytes, is_selected=name == selected))
    return contenders, declined


def _arguments(sizes: _Sizes, copies: int) -> Iterator[tuple[Any, ...]]:
    """Calls over one cache, each with blocks of its own, dealt in random order as after a while."""
    heads = sizes.heads
    blocks = -(-sizes.context // _BLOCK)
    tables = torch.randperm(copies * sizes.requests * blocks).to(torch.int32)
    cache = _cache(tables.numel(), sizes)
    query = sizes.normal(sizes.requests, heads.query, heads.size)
    key, value = (sizes.normal(sizes.requests, heads.key, heads.size) for _ in range(2))
    lengths = torch.full((sizes.requests,), sizes.context, dtype=torch.int32)
    starts = torch.arange(sizes.requests + 1, dtype=torch.int32)
    last = sizes.context - 1
    for table in tables.view(copies, sizes.requests, blocks):
        slots = table[:, last // _BLOCK].to(torch.int64) * _BLOCK + last % _BLOCK
        yield ir.ops.paged_attention.bind(
            query,
            key,
            value,
            torch.empty_like(query),
            cache,
            table,
            lengths,
            starts,
            slots,
            heads.size**-0.5,
        )


def _cache(num_blocks: int, sizes: _Sizes) -> Tensor:
    """Random numbers, repeated: drawing all that a cache holds would take longer than the runs."""
    shape = (2, sizes.heads.key, _BLOCK, sizes.heads.size)
    num_bytes = num_blocks * torch.Size(shape).numel() * sizes.dtype.itemsize
    cache = HugePages(num_bytes).tensor((num_blocks, *shape), sizes.dtype)
    drawn = sizes.normal(_RANDOM_BLOCKS, *shape)
    for part in cache.split(_RANDOM_BLOCKS):
        part.copy_(drawn[: len(part)])
    return cache
