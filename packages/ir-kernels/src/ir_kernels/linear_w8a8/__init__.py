"""Kernels of `linear_w8a8`, one file per provider."""

from ir_core import IrOp
from ir_kernels.linear_w8a8 import vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
