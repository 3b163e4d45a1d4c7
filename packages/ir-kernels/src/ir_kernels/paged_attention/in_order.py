"""`paged_attention` in C++ for batch invariance: a token's head alone, in order of its keys.

So its bits depend on nothing but its query and the keys that it sees: not on the batch, on chunks
of the prompt, on threads, or on which heads a rank holds. csrc/attention_few_lanes.inc has it.
"""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import library
from ir_kernels.library import kernels
from ir_kernels.paged_attention.vllm_c import supports_args


def register(op: IrOp) -> None:
    """Register provider `in_order`; opaque, since what it computes depends on lengths."""
    op.register_impl(
        "in_order",
        supported=library.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(paged_attention)


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
    """As `vllm_c`, each token of a prompt as if it were decoded; keys are divided nowhere."""
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
        in_order=True,
    )
