"""Kernels of `all_gather`, one file per provider."""

from ir_core import IrOp
from ir_kernels.all_gather import gloo, nccl, shm


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    shm.register(op)
    gloo.register(op)
    nccl.register(op)
