"""Torch's products that overlap with a collective over symmetric memory, on NVIDIA GPUs.

Says whether they can run and what they take; they write into the other ranks' memory, so all ranks
are on one machine, or in one domain of NVLink. The process group is that of provider `nccl`.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ir_core import groups
from ir_kernels.rank_products import product_refusal

# What the kernels that copy between ranks move at a time.
_ALIGNMENT = 16
_DEVICE = "cuda"


def availability() -> tuple[bool, str]:
    """Whether this torch has the ops, and sees a GPU for them."""
    if torch.version.cuda is None:
        return False, "needs an NVIDIA GPU; this torch is built without CUDA"
    if not torch.cuda.is_available():
        return False, "needs an NVIDIA GPU; torch sees none"
    if not torch.distributed.is_nccl_available():
        return False, "this torch was built without NCCL"
    return True, ""


def refusal(x: Tensor, weight: Tensor, bias: Tensor | None, axis: str) -> str:
    """Why torch's op does not take this call, asked of argument views; "" if it does."""
    reason = product_refusal(x, weight, bias, axis, "nccl", _DEVICE)
    if reason:
        return reason
    if bias is not None:
        return "adds no bias, and afterwards it would be rounded twice"
    for name, width in (("x", x.shape[-1]), ("the product", weight.shape[0])):
        if width * x.itemsize % _ALIGNMENT:
            return f"takes rows of whole {_ALIGNMENT} bytes; those of {name} have {width} elements"
    return ""


def ops() -> Any:
    """The namespace of torch's ops, which are defined where their module is imported."""
    import_module("torch.distributed._symmetric_memory")
    return torch.ops.symm_mem


def group_name(axis: str) -> str:
    """By which torch knows the ranks of an axis.

    Raises:
        GroupError: the group has no process group of backend NCCL.
    """
    name: str = groups.get_group(axis).transport("nccl").group_name
    return name
