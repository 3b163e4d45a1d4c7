"""`linear_w8a16` in C++ on panels of packed weights: csrc/quantized_product.inc."""

from torch import Tensor, int8

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`; how it sums depends on the batch, so it is not invariant."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        layouts=("panel16",),
    )(linear_w8a16)


def supports_args(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> bool | str:
    """Any x, in groups of 16, 32, 64 or 128."""
    return (
        arguments.activation(x, "cpu")
        or arguments.quantized_groups(weight, int8, scale, None, group_size)
        or (bias is not None and arguments.same_dtype(x, bias, "bias"))
        or True
    )


def linear_w8a16(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """Few tokens by the integers themselves, scaled by the group; many by weights in x's dtype."""
    return kernels.linear_w8a16_panels.default(x, weight, scale, bias, group_size)
