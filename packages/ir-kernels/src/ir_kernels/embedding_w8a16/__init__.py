"""Kernels of `embedding_w8a16`, one file per provider."""

from ir_core import IrOp
from ir_kernels.embedding_w8a16 import vllm_c


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    vllm_c.register(op)
