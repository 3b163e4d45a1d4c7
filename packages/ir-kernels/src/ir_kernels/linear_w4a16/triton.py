"""`linear_w4a16` in Triton on plain weights: triton_kernels/quantized_product.py."""

from typing import NamedTuple

import torch
from torch import Tensor, float32, uint8

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels


class _Tile(NamedTuple):
    tokens: int
    rows: int
    columns: int


# Few tokens are bound by reading the weight, so more programs read; many by multiplying. float32
# keeps below 64 tokens: from there on, triton lets sm_100 multiply in tf32, whatever it was told.
_FEW, _MANY, _FLOAT32 = _Tile(16, 32, 128), _Tile(64, 64, 64), _Tile(16, 32, 64)


def register(op: IrOp) -> None:
    """Register provider `triton`; its tiles depend on the batch, so it claims no invariance."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
    )(linear_w4a16)


def supports_args(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> bool | str:
    """Any x, in groups of 16, 32, 64 or 128."""
    return (
        arguments.activation(x, triton_kernels.device_type())
        or arguments.one_device(x, weight=weight, scale=scale, minimum=minimum, bias=bias)
        or arguments.quantized_groups(weight, uint8, scale, minimum, group_size)
        or (bias is not None and arguments.same_dtype(x, bias, "bias"))
        or True
    )


def linear_w4a16(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None = None,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """Values are rounded to x's dtype, as in native; 16-bit ones are multiplied by tensor cores."""
    from ir_kernels.triton_kernels import quantized_product  # noqa: PLC0415

    outputs, inputs = weight.shape[0], 2 * weight.shape[1]
    rows = x.reshape(x.shape[:-1].numel(), inputs)
    out = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    tile = _FEW if rows.shape[0] <= _FEW.tokens else _MANY
    tile = _FLOAT32 if x.dtype == float32 else tile
    triton_kernels.launch(
        quantized_product.multiply_w4a16,
        (-(-rows.shape[0] // tile.tokens), -(-outputs // tile.rows)),
        rows,
        weight,
        scale,
        minimum,
        bias,
        out,
        rows.shape[0],
        *rows.stride(),
        *weight.stride(),
        *scale.stride(),
        *((0, 0) if minimum is None else minimum.stride()),
        0 if bias is None else bias.stride(0),
        OUTPUTS=outputs,
        INPUTS=inputs,
        GROUP=group_size,
        TOKENS=tile.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
    )
    return out
