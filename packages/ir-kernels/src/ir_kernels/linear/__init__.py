"""Kernels of `linear`, one file per provider."""

from ir_core import IrOp
from ir_kernels.linear import float32_gemm, in_order, rowwise, vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    float32_gemm.register(op)
    in_order.register(op)
    rowwise.register(op)
    vllm_c.register(op)
