"""The ops of the default registry as attributes: those that ship with the core, and any other.

Chooses no implementation: see `ir_core.dispatch`.
"""

from collections.abc import Iterable

from ir_core.default_registry import registry
from ir_core.errors import UnknownOpError
from ir_core.op import IrOp
from ir_core.ops.activation import gelu_and_mul, silu_and_mul
from ir_core.ops.all_reduce_add_rms_norm import all_reduce_add_rms_norm
from ir_core.ops.collectives import all_gather, all_reduce, reduce_scatter
from ir_core.ops.embedding import embedding, embedding_w8a16
from ir_core.ops.linear import linear
from ir_core.ops.linear_w8a8 import linear_w8a8
from ir_core.ops.overlapped_linear import all_gather_linear, linear_reduce_scatter
from ir_core.ops.paged_attention import paged_attention
from ir_core.ops.qk_norm_rope import qk_norm_rope
from ir_core.ops.quantize import (
    quantize_fp8_per_token,
    quantize_fp8_static,
    quantize_int8_per_token,
)
from ir_core.ops.quantized_linear import linear_w4a16, linear_w8a16
from ir_core.ops.quantized_results import (
    fused_add_rms_norm_quantize_fp8_per_token,
    fused_add_rms_norm_quantize_fp8_static,
    fused_add_rms_norm_quantize_int8_per_token,
    rms_norm_quantize_fp8_per_token,
    rms_norm_quantize_fp8_static,
    rms_norm_quantize_int8_per_token,
    silu_and_mul_quantize_fp8_per_token,
    silu_and_mul_quantize_fp8_static,
    silu_and_mul_quantize_int8_per_token,
)
from ir_core.ops.rms_norm import fused_add_rms_norm, rms_norm
from ir_core.ops.rotary_embedding import rotary_embedding
from ir_core.ops.rotary_paged_attention import rotary_paged_attention
from ir_core.ops.sampling import sample_tokens

__all__ = [
    "all_gather",
    "all_gather_linear",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "embedding",
    "embedding_w8a16",
    "fused_add_rms_norm",
    "fused_add_rms_norm_quantize_fp8_per_token",
    "fused_add_rms_norm_quantize_fp8_static",
    "fused_add_rms_norm_quantize_int8_per_token",
    "gelu_and_mul",
    "linear",
    "linear_reduce_scatter",
    "linear_w4a16",
    "linear_w8a8",
    "linear_w8a16",
    "paged_attention",
    "qk_norm_rope",
    "quantize_fp8_per_token",
    "quantize_fp8_static",
    "quantize_int8_per_token",
    "reduce_scatter",
    "rms_norm",
    "rms_norm_quantize_fp8_per_token",
    "rms_norm_quantize_fp8_static",
    "rms_norm_quantize_int8_per_token",
    "rotary_embedding",
    "rotary_paged_attention",
    "sample_tokens",
    "silu_and_mul",
    "silu_and_mul_quantize_fp8_per_token",
    "silu_and_mul_quantize_fp8_static",
    "silu_and_mul_quantize_int8_per_token",
]


def __getattr__(name: str) -> IrOp:
    """An op that somebody else registered; AttributeError with a suggestion if nobody did."""
    if name.startswith("__"):
        raise AttributeError(name)
    registry().load_plugins()
    try:
        return registry()[name]
    except UnknownOpError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> Iterable[str]:
    return sorted({*registry(), *globals()})
