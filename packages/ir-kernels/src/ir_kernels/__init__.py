"""Kernel providers for the ops of `ir_core`: one folder per op, one file per provider.

Importing registers nothing; `register` does, and is what the entry point calls.
"""

import ir_core as ir
from ir_kernels import (
    all_gather,
    all_gather_linear,
    all_reduce,
    all_reduce_add_rms_norm,
    embedding,
    embedding_w8a16,
    fused_add_rms_norm,
    fused_add_rms_norm_quantize_int8_per_token,
    gelu_and_mul,
    linear,
    linear_reduce_scatter,
    linear_w4a16,
    linear_w8a8,
    linear_w8a16,
    paged_attention,
    qk_norm_rope,
    quantize_fp8_per_token,
    quantize_fp8_static,
    quantize_int8_per_token,
    reduce_scatter,
    rms_norm,
    rms_norm_quantize_int8_per_token,
    rotary_embedding,
    rotary_paged_attention,
    sample_tokens,
    silu_and_mul,
    silu_and_mul_quantize_int8_per_token,
)


def register(registry: ir.Registry | None = None) -> None:
    """Register every provider into `registry`, by default the process's own.

    Loads no library and touches no device: each provider finds out when it is first asked for.
    """
    ops = ir.registry() if registry is None else registry
    rms_norm.register(ops["rms_norm"])
    fused_add_rms_norm.register(ops["fused_add_rms_norm"])
    silu_and_mul.register(ops["silu_and_mul"])
    gelu_and_mul.register(ops["gelu_and_mul"])
    quantize_fp8_static.register(ops["quantize_fp8_static"])
    quantize_fp8_per_token.register(ops["quantize_fp8_per_token"])
    quantize_int8_per_token.register(ops["quantize_int8_per_token"])
    rms_norm_quantize_int8_per_token.register(ops["rms_norm_quantize_int8_per_token"])
    fused_add_rms_norm_quantize_int8_per_token.register(
        ops["fused_add_rms_norm_quantize_int8_per_token"]
    )
    silu_and_mul_quantize_int8_per_token.register(ops["silu_and_mul_quantize_int8_per_token"])
    rotary_embedding.register(ops["rotary_embedding"])
    qk_norm_rope.register(ops["qk_norm_rope"])
    linear.register(ops["linear"])
    linear_w4a16.register(ops["linear_w4a16"])
    linear_w8a16.register(ops["linear_w8a16"])
    linear_w8a8.register(ops["linear_w8a8"])
    embedding.register(ops["embedding"])
    embedding_w8a16.register(ops["embedding_w8a16"])
    paged_attention.register(ops["paged_attention"])
    rotary_paged_attention.register(ops["rotary_paged_attention"])
    sample_tokens.register(ops["sample_tokens"])
    all_reduce.register(ops["all_reduce"])
    all_reduce_add_rms_norm.register(ops["all_reduce_add_rms_norm"])
    reduce_scatter.register(ops["reduce_scatter"])
    all_gather.register(ops["all_gather"])
    linear_reduce_scatter.register(ops["linear_reduce_scatter"])
    all_gather_linear.register(ops["all_gather_linear"])
