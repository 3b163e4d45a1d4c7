"""Kernels of `linear_reduce_scatter`, one file per provider."""

from ir_core import IrOp
from ir_kernels.linear_reduce_scatter import gloo, shm, symm_mem


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    shm.register(op)
    gloo.register(op)
    symm_mem.register(op)
