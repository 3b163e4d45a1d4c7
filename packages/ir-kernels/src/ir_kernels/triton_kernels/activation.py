"""Gated activations: a formula of the first half of a row, times the second."""

# pyright: reportMissingParameterType=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch.

import triton
import triton.language as tl

from ir_kernels.triton_kernels.storage import narrow, widen


@triton.jit
def _gate(x, FORMULA: tl.constexpr):
    if FORMULA == "silu":
        result = x / (1.0 + tl.exp(-x))
    elif FORMULA == "gelu_tanh":
        # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which does not cancel.
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        result = x / (1.0 + tl.exp(-2.0 * u))
    else:
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return result


@triton.jit(do_not_specialize=["num_rows"])
def gate_rows(
    x,
    out,
    num_rows,
    x_row,
    x_column,
    SIZE: tl.constexpr,
    FORMULA: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """x [num_rows, 2 * SIZE] = gate | up into dense `out` [num_rows, SIZE]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < SIZE)
    at = x + row * x_row + column * x_column
    gate = widen(tl.load(at, inside, 0.0))
    up = widen(tl.load(at + SIZE * x_column, inside, 0.0))
    result = narrow(_gate(gate, FORMULA) * up, out.dtype.element_ty)
    tl.store(out + row * SIZE + column, result, inside)
