"""Casts between float32, in which kernels compute, and what tensors hold. Computes nothing.

The interpreter's own casts to bfloat16 truncate and lose subnormal numbers, and its arithmetic
takes a bfloat16 for an integer; hence casts by bits, and `operand`. Compiled, they are the usual
ones.
"""

# pyright: reportMissingParameterType=false
# Pointers and tiles have no Python type: triton types a kernel anew for each launch.

import triton
import triton.language as tl

from ir_kernels.triton_kernels import is_interpreted

INTERPRETED = tl.constexpr(is_interpreted())


@triton.jit
def widen(x):
    """x in float32, exactly."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 x rounded to `dtype`, to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        upper = tl.where(x == x, rounded, 0x7FC0).to(tl.uint16)  # noqa: PLR0124  (a NaN is not)
        result = upper.to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def convert(x, dtype: tl.constexpr):
    """x in `dtype`, from any other."""
    return x if x.dtype == dtype else narrow(widen(x), dtype)


@triton.jit
def operand(x):
    """x as `tl.dot` takes it: as it is, so that tensor cores multiply; interpreted, in float32."""
    return widen(x) if INTERPRETED else x
