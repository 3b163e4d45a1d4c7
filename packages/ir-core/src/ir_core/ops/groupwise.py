"""Group-wise quantised weights: their shapes, their values, and examples. Multiplies nothing.

Shapes: a weight of integers has rows of K values in K / group_size groups, each of which has one
`scale` and perhaps one `minimum`. Four-bit integers lie in pairs in a byte, the first one low.
"""

import torch
from torch import Tensor

from ir_core.errors import ArgumentError


def unpack_nibbles(weight: Tensor) -> Tensor:
    """uint8 [rows, K / 2] to uint8 [rows, K], each 0 to 15."""
    return torch.stack((weight & 15, weight >> 4), dim=-1).flatten(1)


def dequantize(
    integers: Tensor, scale: Tensor, minimum: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """`integers * scale + minimum` of each group: [rows, K] in `dtype`, in which it is computed."""
    rows, num_groups = scale.shape
    groups = integers.to(dtype).view(rows, num_groups, integers.shape[1] // max(1, num_groups))
    values = groups * scale.to(dtype).unsqueeze(-1)
    if minimum is not None:
        values += minimum.to(dtype).unsqueeze(-1)
    return values.view(integers.shape)


def check_groups(
    op: str, weight: Tensor, scales: dict[str, Tensor | None], group_size: int, per_byte: int
) -> None:
    """Check the weight of an op against its groups; `per_byte` values lie in an element.

    Raises:
        ArgumentError: names the op, the parameter and what it must be.
    """
    if weight.dim() != 2:
        raise ArgumentError(f"`{op}` got a `weight` of {weight.dim()} dims; it has 2.")
    rows, width = weight.shape[0], weight.shape[1] * per_byte
    if group_size <= 0 or group_size % per_byte or width % group_size:
        kind = "a positive, even number" if per_byte == 2 else "a positive number"
        raise ArgumentError(
            f"`{op}` got `group_size` {group_size} for rows of {width}; it is {kind} that divides "
            "them."
        )
    for name, each in scales.items():
        if each is not None and each.shape != (rows, width // group_size):
            raise ArgumentError(
                f"`{op}` got `{name}` of shape {list(each.shape)}; it is "
                f"{[rows, width // group_size]}, one for each group of {group_size}."
            )


def check_dtype(op: str, weight: Tensor, dtype: torch.dtype) -> None:
    """Raise ArgumentError unless the weight's integers are of `dtype`."""
    if weight.dtype != dtype:
        raise ArgumentError(f"`{op}` got a `weight` of {weight.dtype}; it is {dtype}.")
