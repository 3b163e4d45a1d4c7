"""Norm of each query and key head, then rotary embedding. Owns no formula: it composes two ops."""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.ops.rms_norm import rms_norm
from ir_core.ops.rotary_embedding import rotary_embedding
from ir_core.ops.workload import Workload, workloads


@register_op(allow_inplace=True, batch_invariant=True, token_dims={"positions": 0})
def qk_norm_rope(
    x_query: Tensor,
    x_key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """`rotary_embedding` of the `rms_norm` of each head: (query, key).

    `x_query` [T, Hq, D], `x_key` [T, Hkv, D], D = `head_size`; `query_weight` and `key_weight` [D];
    `positions` and `cos_sin_cache` as in `rotary_embedding`. Outputs have the inputs' shapes and
    dtypes, contiguous. The normalised head is rounded to the activations' dtype before it turns, so
    the op equals the three ops that it stands for bit for bit. A position outside the table is an
    error. Source: arXiv:2505.09388 (Qwen3).
    """
    query = rms_norm.native(x_query, query_weight, epsilon)
    key = rms_norm.native(x_key, key_weight, epsilon)
    return rotary_embedding.native(query, key, positions, cos_sin_cache, head_size, is_neox)


@qk_norm_rope.register_fake
def _qk_norm_rope_fake(
    x_query: Tensor,
    x_key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """As native, which takes long on fakes."""
    return x_query.new_empty(x_query.shape), x_key.new_empty(x_key.shape)


# A norm may round an element to its neighbour, and the rotation then changes both of a pair.
_FEW = 0.01


@qk_norm_rope.register_input_generator
@workloads(
    Workload("one-row", "decode of one request", {"num_tokens": 1}, _FEW, bench=True),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32}, _FEW, bench=True),
    Workload(
        "prefill",
        "bound by bandwidth",
        {"num_tokens": 512},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    ),
    Workload("pairs", "neighbours form a pair", {"num_tokens": 5, "is_neox": False}, _FEW),
    Workload("partial", "part of each head turns", {"num_tokens": 5, "rotary_size": 32}, _FEW),
    Workload(
        "float32-weight",
        "the weight decides where the norm is rounded",
        {"num_tokens": 16, "weight_dtype": torch.float32},
        _FEW,
    ),
    Workload("large", "values near 1000", {"num_tokens": 9, "scale": 1000.0}, _FEW),
    Workload("odd", "one key head of odd half", {"num_tokens": 7, "heads": (5, 1), "head_size": 6}),
)
def _qk_norm_rope_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (16, 8),
    head_size: int = 128,
    weight_dtype: torch.dtype | None = None,
    scale: float = 1.0,
    seed: int = 0,
    **rotation: Any,
) -> tuple[Any, ...]:
    shape = {"num_tokens": num_tokens, "heads": heads, "head_size": head_size}
    query, key, *rest = rotary_embedding.generate_inputs(
        **shape, dtype=torch.float32, seed=seed, **rotation
    )
    random = torch.Generator().manual_seed(seed + 1)
    query_weight, key_weight = (
        (1 + torch.randn(head_size, generator=random) / 4).to(weight_dtype or dtype)
        for _ in range(2)
    )
    query, key = ((each * scale).to(dtype) for each in (query, key))
    return query, key, query_weight, key_weight, 1e-6, *rest


_ROUNDED = "the normalised head is rounded before it turns, where elements of a pair may cancel"
qk_norm_rope.override_tolerance(torch.float16, atol=5e-3, rtol=2e-3, reason=_ROUNDED)
qk_norm_rope.override_tolerance(torch.bfloat16, atol=4e-2, rtol=1.6e-2, reason=_ROUNDED)
