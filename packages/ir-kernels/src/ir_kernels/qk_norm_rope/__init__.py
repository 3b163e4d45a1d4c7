"""Kernels of `qk_norm_rope`, one file per provider."""

from ir_core import IrOp
from ir_kernels.qk_norm_rope import triton, vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
    triton.register(op)
