"""Kernels of `all_gather_linear`, one file per provider."""

from ir_core import IrOp
from ir_kernels.all_gather_linear import gloo, shm, symm_mem


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    shm.register(op)
    gloo.register(op)
    symm_mem.register(op)
