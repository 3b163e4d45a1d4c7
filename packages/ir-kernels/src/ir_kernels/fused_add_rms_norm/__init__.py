"""Kernels of `fused_add_rms_norm`, one file per provider."""

from ir_core import IrOp
from ir_kernels.fused_add_rms_norm import aiter, triton, vllm_c, xpu_kernels  # noqa: A004


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
    aiter.register(op)
    xpu_kernels.register(op)
    triton.register(op)
