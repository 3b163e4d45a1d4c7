"""`linear` in C++ for batch invariance: every output is one sum, in order of the inputs.

So an output has the same bits whatever other tokens there are, and whatever other outputs: ranks
that divide the rows of a weight compute what one rank would. csrc/linear.inc has it.
"""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import library
from ir_kernels.library import kernels
from ir_kernels.linear.vllm_c import supports_args


def register(op: IrOp) -> None:
    """Register provider `in_order`, which reads layout `panel16` only."""
    op.register_impl(
        "in_order",
        supported=library.availability,
        supports_args=supports_args,
        batch_invariant=True,
        layouts=("panel16",),
    )(linear)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain") -> Tensor:
    """Sums in float32, one product after the other, rounded once with the bias."""
    return kernels.linear_panels.default(x, weight, bias, in_order=True)
