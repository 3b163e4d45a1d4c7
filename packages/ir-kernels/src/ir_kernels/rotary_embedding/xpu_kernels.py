"""`rotary_embedding` by vllm-xpu-kernels (SYCL)."""

from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, xpu_library


def register(op: IrOp) -> None:
    """Register provider `xpu_kernels`."""
    op.register_impl(
        "xpu_kernels", supported=xpu_library.availability, supports_args=supports_args, inplace=True
    )(rotary_embedding)


def supports_args(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> bool | str:
    """float32 only: the library computes in x's dtype, the op in float32."""
    return (
        arguments.activation(x_query, "xpu", (float32,))
        or arguments.same_dtype(x_query, x_key, "x_key")
        or arguments.rotary_table(positions, cos_sin_cache)
        or True
    )


def rotary_embedding(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """The library reads no inner strides, so q and k must be contiguous; else copies are turned."""
    query, key = x_query.contiguous(), x_key.contiguous()
    xpu_library.kernels.rotary_embedding(
        positions.contiguous(), query, key, head_size, cos_sin_cache, is_neox
    )
    return query, key
