"""`rotary_embedding` in Triton: triton_kernels/rotary.py."""

import torch
from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels

# Pairs that a program turns: two tiles of them and as many cosines and sines stay in registers.
_PAIRS = 2048


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
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
        arguments.activation(x_query, triton_kernels.device_type())
        or arguments.one_device(
            x_query, x_key=x_key, positions=positions, cos_sin_cache=cos_sin_cache
        )
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
    """A position outside the table gives NaN: a kernel cannot raise, and must not read there."""
    return run(
        x_query, x_key, None, None, 0.0, positions, cos_sin_cache, head_size, is_neox=is_neox
    )


def run(
    x_query: Tensor,
    x_key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel once for query and key; with weights it normalises each head first."""
    from ir_kernels.triton_kernels import rotary  # noqa: PLC0415

    query, key = (
        each.unflatten(-1, (-1, head_size)) if each.dim() == 2 else each
        for each in (x_query, x_key)
    )
    out = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (x_query, x_key)]
    half = cos_sin_cache.shape[1] // 2
    block = triton_kernels.next_power_of_2(max(1, half))
    num_heads = (query.shape[1], key.shape[1])
    heads = triton_kernels.next_power_of_2(max(1, *num_heads))
    heads = min(heads, max(1, _PAIRS // block))
    triton_kernels.launch(
        rotary.turn_heads,
        (query.shape[0], sum(-(-number // heads) for number in num_heads)),
        query,
        key,
        *out,
        None if query_weight is None else query_weight.contiguous(),
        None if key_weight is None else key_weight.contiguous(),
        epsilon,
        positions.contiguous(),
        cos_sin_cache.contiguous(),
        cos_sin_cache.shape[0],
        *query.stride(),
        *key.stride(),
        NUM_QUERY_HEADS=num_heads[0],
        NUM_KEY_HEADS=num_heads[1],
        HEAD_SIZE=head_size,
        HALF=half,
        IS_NEOX=is_neox,
        HEADS=heads,
        BLOCK=block,
        REST=triton_kernels.next_power_of_2(max(1, head_size - 2 * half)),
    )
    return out[0], out[1]
