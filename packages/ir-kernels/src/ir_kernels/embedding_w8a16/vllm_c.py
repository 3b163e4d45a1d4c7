"""`embedding_w8a16` in C++ on panels of packed weights: csrc/quantized_embedding.inc."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        layouts=("panel16",),
        batch_invariant=True,
    )(embedding_w8a16)


def supports_args(
    input_ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    group_size: int = 32,
    layout: str = "plain",
) -> bool | str:
    """int64 ids on the CPU, any float out, in groups of 16, 32, 64 or 128."""
    if weight.device.type != "cpu" or input_ids.device.type != "cpu":
        return "runs on cpu"
    if input_ids.dtype != torch.int64:
        return f"needs int64 ids, not {arguments.name(input_ids.dtype)}"
    if dtype not in arguments.FLOATS:
        made = ", ".join(map(arguments.name, arguments.FLOATS))
        return f"makes {made}, not {arguments.name(dtype)}"
    return arguments.quantized_groups(weight, torch.int8, scale, None, group_size) or True


def embedding_w8a16(
    input_ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """Rows gathered out of their panels.

    Raises:
        RuntimeError: an id is no row; names it, its place and the size of the table.
    """
    return kernels.embedding_w8a16_panels.default(input_ids, weight, scale, dtype, group_size)
