"""`linear_w8a8` in C++ on panels of packed weights: csrc/int8_product.inc."""

import torch
from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`: sums are exact, so that it gives native's bits on every ISA."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        layouts=("panel16",),
        batch_invariant=True,
    )(linear_w8a8)


def supports_args(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    layout: str = "plain",
) -> bool | str:
    """Any rows of bytes, with float32 scales."""
    if x.device.type != "cpu":
        return f"runs on cpu, and the activations are on {x.device.type}"
    if dtype not in arguments.FLOATS:
        return f"makes {', '.join(map(arguments.name, arguments.FLOATS))}, not " + arguments.name(
            dtype
        )
    for scale, word in ((x_scale, "x_scale"), (weight_scale, "weight_scale")):
        if scale.dtype != float32:
            return f"needs a float32 `{word}`, not {arguments.name(scale.dtype)}"
    if bias is not None and bias.dtype != dtype:
        return f"needs a bias of {arguments.name(dtype)}, not {arguments.name(bias.dtype)}"
    return True


def linear_w8a8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    layout: str = "plain",
) -> Tensor:
    """Bytes by bytes in integers, scaled once."""
    return kernels.linear_w8a8_panels.default(x, x_scale, weight, weight_scale, dtype, bias)
