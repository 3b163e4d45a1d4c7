"""Kernels of `gelu_and_mul`, one file per provider."""

from ir_core import IrOp
from ir_kernels.gelu_and_mul import triton


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    triton.register(op)
