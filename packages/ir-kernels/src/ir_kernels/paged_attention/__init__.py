"""Kernels of `paged_attention`, one file per provider."""

from ir_core import IrOp
from ir_kernels.paged_attention import (
    flash_attn,
    flashinfer,
    in_order,
    rowwise,
    triton,
    vllm_c,
)


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
    triton.register(op)
    flash_attn.register(op)
    flashinfer.register(op)
    in_order.register(op)
    rowwise.register(op)
