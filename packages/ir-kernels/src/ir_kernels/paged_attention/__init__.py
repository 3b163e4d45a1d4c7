"""Kernels of `paged_attention`, one file per provider."""

from ir_core import IrOp
from ir_kernels.paged_attention import rowwise, triton, vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
    triton.register(op)
    rowwise.register(op)
