"""Products by 4-bit weights in groups, which are unpacked tile by tile in registers."""

# pyright: reportMissingParameterType=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch.

import triton
import triton.language as tl

from ir_kernels.triton_kernels.storage import narrow, operand, widen


@triton.jit(do_not_specialize=["num_tokens"])
def multiply_w4a16(
    x,
    weight,
    scale,
    minimum,
    bias,
    out,
    num_tokens,
    x_row,
    x_column,
    weight_row,
    weight_column,
    scale_row,
    scale_column,
    minimum_row,
    minimum_column,
    bias_column,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """x [num_tokens, INPUTS] by the values of `weight` [OUTPUTS, INPUTS / 2] into dense `out`.

    A program makes a tile of TOKENS by ROWS outputs, COLUMNS inputs at a time. Values are rounded
    to x's dtype, sums are float32, and what is stored is rounded once.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    output = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = output[:, None]
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in range(0, INPUTS, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        byte = start // 2 + tl.arange(0, COLUMNS // 2)[None, :]
        inside = (row < OUTPUTS) & (column < INPUTS)
        x_tile = tl.load(
            x + token * x_row + column * x_column, (token < num_tokens) & (column < INPUTS), 0.0
        )
        pairs = tl.load(
            weight + row * weight_row + byte * weight_column,
            (row < OUTPUTS) & (byte < INPUTS // 2),
            0,
        )
        value = tl.interleave(pairs & 15, pairs >> 4).to(tl.float32)
        group = column // GROUP
        step = widen(tl.load(scale + row * scale_row + group * scale_column, inside, 0.0))
        if minimum is None:
            value = (value - 8.0) * step
        else:
            at = minimum + row * minimum_row + group * minimum_column
            value = value * step + widen(tl.load(at, inside, 0.0))
        factor = tl.trans(operand(narrow(value, dtype)))
        total = tl.dot(operand(x_tile), factor, total, input_precision="ieee")
    column = output[None, :]
    if bias is not None:
        total += widen(tl.load(bias + column * bias_column, column < OUTPUTS, 0.0))
    inside = (token < num_tokens) & (column < OUTPUTS)
    tl.store(out + token * OUTPUTS + column, narrow(total, dtype), inside)
