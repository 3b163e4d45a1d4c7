"""Kernels of `silu_and_mul_quantize_int8_per_token`, one file per provider."""

from ir_core import IrOp
from ir_kernels.silu_and_mul_quantize_int8_per_token import vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
