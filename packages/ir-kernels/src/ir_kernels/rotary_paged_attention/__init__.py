"""Kernels of `rotary_paged_attention`, one file per provider."""

from ir_core import IrOp
from ir_kernels.rotary_paged_attention import vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
