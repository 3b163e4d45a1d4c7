"""`paged_attention` in C++, keys read where they lie in the cache: csrc/attention.inc."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`; opaque, since what it computes depends on lengths."""
    op.register_impl(
        "vllm_c", supported=library.availability, supports_args=supports_args, opaque=True
    )(paged_attention)


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
    scale: float,
    sliding_window: int | None = None,
) -> bool | str:
    """Any layout of q, k, v and output; any float cache."""
    return (
        arguments.activation(x_query, "cpu")
        or arguments.same_dtype(x_query, x_key, "x_key")
        or arguments.same_dtype(x_query, x_value, "x_value")
        or arguments.same_dtype(x_query, output, "output")
        or arguments.float_cache(kv_cache)
        or True
    )


def paged_attention(
    x_query: Tensor,
    x_key: Tensor,
    x_value: Tensor,
    output: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    slot_mapping: Tensor,
    scale: float,
    sliding_window: int | None = None,
) -> None:
    """An index that points outside its tensor is a RuntimeError, and nothing is written."""
    kernels.paged_attention.default(
        x_query,
        x_key,
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
