"""`rotary_embedding` in C++: csrc/rotary.inc."""

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
        batch_invariant=True,
    )(rotary_embedding)


def supports_args(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> bool | str:
    """Any layout of q and k, slices of a merged qkv too."""
    return (
        arguments.activation(x_query, "cpu")
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
    """Reads heads where they lie; a position outside the table is a RuntimeError."""
    return kernels.rotary_embedding.default(
        x_query, x_key, positions, cos_sin_cache, head_size, is_neox
    )
