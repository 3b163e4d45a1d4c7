"""`linear` in bfloat16 by float32 GEMMs, for CPUs whose torch has no fast bfloat16 one.

Without AVX-512, torch multiplies bfloat16 matrices some five times slower than it converts them
to float32 and multiplies those. Shapes: T tokens, I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ir_core import IrOp
from ir_kernels import arguments

# Below this many tokens torch streams the weight through a matrix-vector kernel.
_FEW_TOKENS = 4
# A converted block of the weight should still be in the cache when it is multiplied.
_BLOCK_BYTES = 4 << 20


def register(op: IrOp) -> None:
    """Register provider `float32_gemm`; opaque, since it branches on the number of tokens."""
    op.register_impl(
        "float32_gemm", supported=availability, supports_args=supports_args, opaque=True
    )(linear)


def availability() -> tuple[bool, str]:
    """Whether this machine is one that gains from it."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False, "torch has fast bfloat16 GEMMs on this CPU"
    return True, ""


def supports_args(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
) -> bool | str:
    """bfloat16 throughout, on the CPU."""
    return (
        arguments.activation(x, "cpu", (torch.bfloat16,))
        or arguments.same_dtype(x, weight, "weight")
        or (bias is not None and arguments.same_dtype(x, bias, "bias"))
        or True
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain") -> Tensor:
    """Sums in float32 over the exact products, rounded once with the bias."""
    x_TI = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    if x_TI.shape[0] < _FEW_TOKENS:
        return functional.linear(x, weight, bias)
    wide_TI = x_TI.float()
    out_TO = x.new_empty(x_TI.shape[0], weight.shape[0])
    rows = max(1, _BLOCK_BYTES // (4 * max(1, weight.shape[1])))
    for start in range(0, weight.shape[0], rows):
        block = slice(start, start + rows)
        part = None if bias is None else bias[block].float()
        out_TO[:, block] = functional.linear(wide_TI, weight[block].float(), part)
    return out_TO.view(*x.shape[:-1], weight.shape[0])
