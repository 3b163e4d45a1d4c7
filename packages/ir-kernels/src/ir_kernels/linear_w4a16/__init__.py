"""Kernels of `linear_w4a16`, one file per provider."""

from ir_core import IrOp
from ir_kernels.linear_w4a16 import triton, vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
    triton.register(op)
