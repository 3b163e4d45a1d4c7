"""Kernels of `all_reduce`, one file per provider, and what the other collectives share with it."""

from ir_core import IrOp
from ir_kernels.all_reduce import gloo, nccl, shm


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    shm.register(op)
    gloo.register(op)
    nccl.register(op)
