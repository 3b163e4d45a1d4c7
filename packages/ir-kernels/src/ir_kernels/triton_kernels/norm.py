"""RMS norms of rows, alone and after a residual add; a tile holds whole rows."""

# pyright: reportMissingParameterType=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch.

import triton
import triton.language as tl

from ir_kernels.triton_kernels.storage import narrow, widen


@triton.jit
def times_weight(normal, weight):
    """float32 `normal`, rounded to the weight's dtype, times the weight: in float32."""
    return widen(narrow(normal, weight.dtype)) * widen(weight)


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(
    x,
    residual,
    weight,
    out,
    total,
    num_rows,
    x_row,
    x_column,
    residual_row,
    residual_column,
    weight_column,
    epsilon,
    SIZE: tl.constexpr,
    VARIANCE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The norm of x [num_rows, SIZE] into dense `out`.

    With a `residual`, that of the sum, which goes into dense `total` and is rounded once.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < SIZE)
    value = widen(tl.load(x + row * x_row + column * x_column, inside, 0.0))
    if residual is not None:
        at = row * residual_row + column * residual_column
        added = value + widen(tl.load(residual + at, inside, 0.0))
        stored = narrow(added, total.dtype.element_ty)
        tl.store(total + row * SIZE + column, stored, inside)
        value = widen(stored)
    square = tl.where(column < VARIANCE_SIZE, value * value, 0.0)
    mean = tl.sum(square, axis=1, keep_dims=True) / VARIANCE_SIZE
    normal = value * tl.rsqrt(mean + epsilon)
    if weight is not None:
        normal = times_weight(normal, tl.load(weight + column * weight_column, column < SIZE, 0.0))
    tl.store(out + row * SIZE + column, narrow(normal, out.dtype.element_ty), inside)
