"""Providers `flash_attn` and `flashinfer`: the calls they make, and what they refuse.

The libraries are not here, so functions with their signatures stand in for them. They compute
attention in float32, from nothing but what a call gives them.
"""

import math
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.testing import workloads_of
from ir_kernels import flash_attn_library, flashinfer_library, machine
from ir_kernels.paged_attention import flash_attn, flashinfer

WORKLOADS = tuple(
    each
    for each in workloads_of(ir.ops.paged_attention)
    if each.checked and "long" not in each.name and "cache_dtype" not in each.inputs
)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window_left: int) -> Tensor:
    """Queries [T, Hq, D] as the last of keys [L, H, D], which see so many keys to their left."""
    group = q.shape[1] // k.shape[1]
    key, value = (each.float().repeat_interleave(group, dim=1) for each in (k, v))
    scores = torch.einsum("thd,lhd->htl", q.float(), key) * scale
    ahead = torch.arange(len(k)) - torch.arange(len(k) - len(q), len(k))[:, None]
    hidden = ahead > 0
    if window_left >= 0:
        hidden |= ahead < -window_left
    weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
    return torch.einsum("htl,lhd->thd", weights, value).to(q.dtype)


@pytest.fixture
def flash_attn_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        assert block_table is not None
        assert softmax_scale is not None
        assert block_table.is_contiguous()
        assert k.stride(-1) == v.stride(-1) == 1
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
        assert cu_seqlens_q.shape == cu_seqlens_k.shape == (len(block_table) + 1,)
        assert (causal, dropout_p, softcap) == (True, 0.0, 0.0)
        assert window_size[1] == (-1 if window_size[0] < 0 else 0)
        out = torch.full_like(q, torch.nan)
        starts, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for request, blocks in enumerate(block_table):
            first, end = starts[request], starts[request + 1]
            length = ends[request + 1] - ends[request]
            assert end - first <= max_seqlen_q
            assert length <= max_seqlen_k
            if length == 0:
                out[first:end] = 0
            elif end > first:
                keys, values = (each[blocks].flatten(0, 1)[:length] for each in (k, v))
                out[first:end] = attend(q[first:end], keys, values, softmax_scale, window_size[0])
        return out

    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)


class PagedWrapper:
    """`BatchPrefillWithPagedKVCacheWrapper`, as far as it is used."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "HND")

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        """Keep the plan."""
        tensors = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(each.dtype == torch.int32 for each in tensors)
        assert causal
        assert sm_scale is not None
        assert min(paged_kv_last_page_len.tolist()) > 0
        assert max(paged_kv_last_page_len.tolist()) <= page_size
        self.starts, self.block_starts = qo_indptr.tolist(), paged_kv_indptr.tolist()
        self.blocks, self.last = paged_kv_indices, paged_kv_last_page_len.tolist()
        assert len(self.blocks) == self.block_starts[-1]
        self.scale, self.window_left = sm_scale, window_left
        self.heads = (num_qo_heads, num_kv_heads, page_size, head_dim_qk)
        self.dtypes = (q_data_type, kv_data_type)

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Attention over the planned blocks."""
        assert out is None
        assert len(q) == self.starts[-1]
        assert self.heads == (q.shape[1], *paged_kv_cache.shape[2:])
        assert self.dtypes == (q.dtype, paged_kv_cache.dtype)
        parts: list[Tensor] = []
        for request, last in enumerate(self.last):
            blocks = self.blocks[self.block_starts[request] : self.block_starts[request + 1]]
            length = (len(blocks) - 1) * self.heads[2] + last
            cache = paged_kv_cache[blocks].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
            rows = slice(self.starts[request], self.starts[request + 1])
            parts.append(attend(q[rows], cache[0], cache[1], self.scale, self.window_left))
        return torch.cat(parts)


@pytest.fixture
def flashinfer_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = PagedWrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    flashinfer_library.paged_prefill.cache_clear()
    monkeypatch.setattr(flashinfer_library, "WORKSPACE_BYTES", 16)


def assert_same(module: ModuleType, arguments: Sequence[Any]) -> None:
    """Output and cache are what native makes of copies; what it leaves alone holds NaN."""
    mine, native = (
        [each.clone() if isinstance(each, Tensor) else each for each in arguments] for _ in "ab"
    )
    for fn, copies in (
        (module.paged_attention, mine),
        (ir.ops.paged_attention.native.fn, native),
    ):
        copies[3].fill_(torch.nan)
        fn(*copies)
    for at in (3, 4):
        torch.testing.assert_close(mine[at], native[at], rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("flash_attn_module", "flashinfer_module")
@pytest.mark.parametrize("module", [flash_attn, flashinfer], ids=lambda each: each.__name__)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.name)
def test_calls_fit_the_library(module: ModuleType, workload: Any) -> None:
    inputs = ir.ops.paged_attention.generate_inputs(**workload.inputs, dtype=torch.float32)
    assert_same(module, inputs)


@pytest.mark.usefixtures("flash_attn_module", "flashinfer_module")
@pytest.mark.parametrize("module", [flash_attn, flashinfer], ids=lambda each: each.__name__)
def test_requests_without_keys_or_queries_are_left_alone(module: ModuleType) -> None:
    generate = ir.ops.paged_attention.generate_inputs
    inputs = list(generate(num_tokens=12, query_len=3, context=20, dtype=torch.float32))
    inputs[6] = inputs[6].clone()
    inputs[6][1] = 0
    assert_same(module, inputs)
    inputs[7] = torch.tensor([0, 3, 3, 6, 9], dtype=torch.int32)
    assert_same(module, inputs)
    inputs[6].zero_()
    assert_same(module, inputs)


@pytest.mark.usefixtures("flash_attn_module", "flashinfer_module")
@pytest.mark.parametrize("module", [flash_attn, flashinfer], ids=lambda each: each.__name__)
def test_no_token_is_no_call(module: ModuleType) -> None:
    inputs = ir.ops.paged_attention.generate_inputs(num_tokens=3, dtype=torch.float32)
    empty = [each[:0] for each in inputs[:4]]
    tables = [each[:0] for each in inputs[5:7]]
    assert_same(module, [*empty, inputs[4], *tables, inputs[7][:1], inputs[8][:0], *inputs[9:]])


def views(
    *, dtype: torch.dtype = torch.bfloat16, cache: torch.dtype | None = None, **shape: int
) -> list[Any]:
    """What a predicate sees of a call on a GPU."""

    def on_gpu(dtype: torch.dtype, *sizes: int) -> Any:
        device = SimpleNamespace(type="cuda")
        return SimpleNamespace(device=device, dtype=dtype, shape=sizes)

    head_size, block_size = shape.get("head_size", 128), shape.get("block_size", 256)
    rows = [on_gpu(dtype, 0, 8, head_size) for _ in range(4)]
    kv_cache = on_gpu(cache or dtype, 9, 2, 2, block_size, head_size)
    return [*rows, kv_cache, None, None, None, None, 0.1]


def test_predicates_say_what_the_libraries_lack() -> None:
    for module in (flash_attn, flashinfer):
        assert module.supports_args(*views()) is True
        assert module.supports_args(*views(), 100) is True
        assert module.supports_args(*views(dtype=torch.float32)) == (
            "takes bfloat16, float16; x has float32"
        )
        assert module.supports_args(*views(cache=torch.float16)) == (
            "needs one dtype for both; x has bfloat16, kv_cache float16"
        )
        assert module.supports_args(*views()[:-1], 0.0) == "needs a positive scale, not 0.0"
    assert flash_attn.supports_args(*views(block_size=16)) == (
        "needs cache blocks of a multiple of 256 tokens, not 16"
    )
    assert flash_attn.supports_args(*views(head_size=260)) == (
        "needs heads of a multiple of 8, not 260"
    )
    assert flash_attn.supports_args(*views(head_size=264)) == (
        "holds up to 256 elements in a head, not 264"
    )
    assert flashinfer.supports_args(*views(block_size=16)) is True
    assert flashinfer.supports_args(*views(head_size=80)) == "takes heads of 64, 128, 256, not 80"


def test_cuda_reasons_in_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    expected = (False, "needs a CUDA GPU; this torch is built without CUDA")
    assert flash_attn_library.availability() == flashinfer_library.availability() == expected
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert flash_attn_library.availability() == (False, "needs a CUDA GPU; torch sees none")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine.cuda_package("json") == (True, "")
    assert machine.cuda_package("no_such_package_here") == (
        False,
        "package `no_such_package_here` is not installed",
    )
