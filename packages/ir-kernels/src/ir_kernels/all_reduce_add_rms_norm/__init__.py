"""Kernels of `all_reduce_add_rms_norm`, one file per provider; `gloo` composes two ops."""

from ir_core import IrOp
from ir_kernels.all_reduce_add_rms_norm import gloo, shm


def register(op: IrOp) -> None:
    """Register every provider of this folder."""
    shm.register(op)
    gloo.register(op)
