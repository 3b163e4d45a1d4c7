"""Rotary embedding, then paged attention. Owns no formula: it composes the ops that it is made of.

Shapes: T tokens, Hq query heads, H key heads, D head size.
"""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.paged_attention import TOKEN_DIMS, paged_attention
from ir_core.ops.paged_attention_inputs import paged_attention_inputs
from ir_core.ops.qk_norm_rope import qk_norm_rope
from ir_core.ops.rotary_embedding import rotary_embedding
from ir_core.ops.workload import Workload, workloads


@register_op(
    mutates=("output", "kv_cache"),
    splits=True,
    opaque=True,
    token_dims={**TOKEN_DIMS, "positions": 0},
)
def rotary_paged_attention(
    x_query: Tensor,
    x_key: Tensor,
    x_value: Tensor,
    output: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    scale: float,
    sliding_window: int | None = None,
    is_neox: bool = True,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float = 1e-6,
) -> None:
    """`paged_attention` of what `rotary_embedding` makes of queries and keys: fills `output`.

    With `query_weight` and `key_weight` [D] it is `qk_norm_rope` that makes them, with `epsilon`.
    `x_query` [T, Hq, D] and `x_key` [T, H, D] are not turned yet, and the cache gets turned keys;
    everything else is as in those ops. Turned heads are rounded to the activations' dtype, so the
    op equals the two ops one after the other bit for bit.

    Raises:
        ArgumentError: one of the weights without the other.
    """
    _check_weights(query_weight, key_weight)
    rotation = positions, cos_sin_cache, x_query.shape[-1], is_neox
    if query_weight is not None and key_weight is not None:
        query, key = qk_norm_rope.native.fn(
            x_query, x_key, query_weight, key_weight, epsilon, *rotation
        )
    else:
        query, key = rotary_embedding.native.fn(x_query, x_key, *rotation)
    paged_attention.native.fn(
        query,
        key,
        x_value,
        output,
        kv_cache,
        block_table,
        seq_lens,
        query_start_loc,
        slot_mapping,
        scale,
        sliding_window,
    )


@rotary_paged_attention.register_fake
def _rotary_paged_attention_fake(
    x_query: Tensor,
    x_key: Tensor,
    x_value: Tensor,
    output: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    scale: float,
    sliding_window: int | None = None,
    is_neox: bool = True,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float = 1e-6,
) -> None:
    _check_weights(query_weight, key_weight)


def _check_weights(query_weight: Tensor | None, key_weight: Tensor | None) -> None:
    if (query_weight is None) != (key_weight is None):
        missing = "query_weight" if query_weight is None else "key_weight"
        raise ArgumentError(
            f"`rotary_paged_attention` got no `{missing}`; queries and keys are both normalised, "
            "or neither."
        )


@rotary_paged_attention.register_input_generator
@workloads(
    Workload("one-decode", "one request", {"num_tokens": 1, "context": 200}, bench=True),
    Workload(
        "decode",
        "requests of many lengths",
        {"num_tokens": 32, "context": 350, "shortest": 100},
        bench=True,
    ),
    Workload("prefill", "no history", {"num_tokens": 70, "query_len": 70, "context": 70}),
    Workload("mixed", "both in one batch", {"num_tokens": 19, "query_len": (9, 1, 1, 1, 7)}),
    Workload("pairs", "neighbours form a pair", {"num_tokens": 5, "is_neox": False}),
    Workload("partial", "part of each head turns", {"num_tokens": 5, "rotary_size": 32}),
    Workload("norms", "each head is normalised before", {"num_tokens": 9, "normed": True}),
    Workload(
        "float32-weights",
        "the weights decide where a norm is rounded",
        {"num_tokens": 6, "normed": True, "weight_dtype": torch.float32},
    ),
    Workload(
        "window", "older keys are hidden", {"num_tokens": 8, "context": 70, "sliding_window": 20}
    ),
    Workload("odd", "sizes no vector divides", {"num_tokens": 5, "heads": (3, 3), "head_size": 10}),
)
def _rotary_paged_attention_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    rotary_size: int | None = None,
    is_neox: bool = True,
    normed: bool = False,
    weight_dtype: torch.dtype | None = None,
    seed: int = 0,
    **attention: Any,
) -> tuple[Any, ...]:
    values = paged_attention_inputs(num_tokens, dtype, seed=seed, **attention)
    *tensors, scale, window = values
    head_size = values[0].shape[-1]
    random = torch.Generator().manual_seed(seed + 1)
    _, _, positions, table, *_ = rotary_embedding.generate_inputs(
        num_tokens=num_tokens,
        dtype=dtype,
        head_size=head_size,
        rotary_size=rotary_size,
        seed=seed + 1,
    )
    weights = (
        (1 + torch.randn(head_size, generator=random) / 4).to(weight_dtype or dtype)
        if normed
        else None
        for _ in range(2)
    )
    return *tensors, positions, table, scale, window, is_neox, *weights, 1e-6


_ROUNDED = "turned heads are rounded, where elements of a pair may cancel, before they are compared"
rotary_paged_attention.override_tolerance(torch.float16, atol=5e-3, rtol=2e-3, reason=_ROUNDED)
rotary_paged_attention.override_tolerance(torch.bfloat16, atol=4e-2, rtol=1.6e-2, reason=_ROUNDED)
