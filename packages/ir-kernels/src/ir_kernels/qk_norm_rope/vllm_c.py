"""`qk_norm_rope` in C++: csrc/qk_norm_rope.inc."""

from torch import Tensor, float32

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
    )(qk_norm_rope)


def supports_args(
    x_query: Tensor,
    x_key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> bool | str:
    """What `rms_norm` and `rotary_embedding` accept, in any layout."""
    return (
        arguments.activation(x_query, "cpu")
        or arguments.same_dtype(x_query, x_key, "x_key")
        or arguments.norm_weight(x_query, query_weight, (float32,))
        or arguments.norm_weight(x_query, key_weight, (float32,))
        or arguments.rotary_table(positions, cos_sin_cache)
        or True
    )


def qk_norm_rope(
    x_query: Tensor,
    x_key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor]:
    """A head at a time, read where it lies; a position outside the table is a RuntimeError."""
    return kernels.qk_norm_rope.default(
        x_query,
        x_key,
        query_weight,
        key_weight,
        epsilon,
        positions,
        cos_sin_cache,
        head_size,
        is_neox,
    )
