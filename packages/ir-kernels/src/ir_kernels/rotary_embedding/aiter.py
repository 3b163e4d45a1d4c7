"""`rotary_embedding` by AMD's AITER library."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import aiter_library, arguments


def register(op: IrOp) -> None:
    """Register provider `aiter`."""
    op.register_impl(
        "aiter", supported=aiter_library.availability, supports_args=supports_args, inplace=True
    )(rotary_embedding)


def supports_args(
    x_query: Tensor,
    x_key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool = True,
) -> bool | str:
    """16-bit q and k beside the float32 table."""
    return (
        arguments.activation(x_query, "cuda", arguments.HALVES)
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
    """The library wants [T, 1, heads, D], and dense cosines and sines of these very tokens."""
    cos, sin = cos_sin_cache.index_select(0, positions)[:, None, None].chunk(2, dim=-1)
    query, key = (each.reshape(each.shape[0], 1, -1, head_size) for each in (x_query, x_key))
    aiter_library.kernels().rope_cached_2c_fwd_inplace(
        query,
        key,
        cos.contiguous(),
        sin.contiguous(),
        0 if is_neox else 1,
        reuse_freqs_front_part=True,
        nope_first=False,
    )
    return query.view(x_query.shape), key.view(x_key.shape)
