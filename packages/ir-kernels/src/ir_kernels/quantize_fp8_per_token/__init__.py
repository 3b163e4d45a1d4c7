"""Kernels of `quantize_fp8_per_token`, one file per provider."""

from ir_core import IrOp
from ir_kernels.quantize_fp8_per_token import vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
