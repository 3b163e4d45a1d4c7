"""`qk_norm_rope` in Triton: triton_kernels/rotary.py, with weights."""

from torch import Tensor, float32

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels
from ir_kernels.rotary_embedding.triton import run


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
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
    weights = {"query_weight": query_weight, "key_weight": key_weight}
    return (
        arguments.activation(x_query, triton_kernels.device_type())
        or arguments.one_device(
            x_query, x_key=x_key, **weights, positions=positions, cos_sin_cache=cos_sin_cache
        )
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
    """One launch for both; a position outside the table gives NaN, as in `rotary_embedding`."""
    return run(
        x_query,
        x_key,
        query_weight,
        key_weight,
        epsilon,
        positions,
        cos_sin_cache,
        head_size,
        is_neox=is_neox,
    )
