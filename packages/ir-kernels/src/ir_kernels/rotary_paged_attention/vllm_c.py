"""`rotary_paged_attention` in C++: csrc/binding_rotary_attention.cpp."""

from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`; opaque, since what it computes depends on lengths."""
    op.register_impl(
        "vllm_c", supported=library.availability, supports_args=supports_args, opaque=True
    )(rotary_paged_attention)


def supports_args(
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
) -> bool | str:
    """What `rotary_embedding` or `qk_norm_rope`, and `paged_attention`, accept, in any layout."""
    return (
        arguments.activation(x_query, "cpu")
        or arguments.same_dtype(x_query, x_key, "x_key")
        or arguments.same_dtype(x_query, x_value, "x_value")
        or arguments.same_dtype(x_query, output, "output")
        or arguments.float_cache(kv_cache)
        or arguments.rotary_table(positions, cos_sin_cache)
        or arguments.norm_weight(x_query, query_weight, (float32,))
        or arguments.norm_weight(x_query, key_weight, (float32,))
        or True
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
    """One call; an index or a position that is out of range is a RuntimeError, nothing written."""
    kernels.rotary_paged_attention.default(
        x_query,
        x_key,
        x_value,
        output,
        kv_cache,
        block_table,
        seq_lens,
        query_start_loc,
        slot_mapping,
        positions,
        cos_sin_cache,
        scale,
        sliding_window,
        is_neox,
        query_weight,
        key_weight,
        epsilon,
    )
