"""`linear` in C++ from weights in panels: csrc/linear.inc."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, library
from ir_kernels.library import kernels


def register(op: IrOp) -> None:
    """Register provider `vllm_c`, which reads layout `panel16` only."""
    op.register_impl(
        "vllm_c",
        supported=library.availability,
        supports_args=supports_args,
        layouts=("panel16",),
    )(linear)


def supports_args(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain"
) -> bool | str:
    """One dtype throughout, on the CPU; any layout of x."""
    return (
        arguments.activation(x, "cpu")
        or arguments.same_dtype(x, weight, "weight")
        or (bias is not None and arguments.same_dtype(x, bias, "bias"))
        or True
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain") -> Tensor:
    """Sums in float32, rounded once with the bias; dot products in bfloat16 flush subnormals."""
    return kernels.linear_panels.default(x, weight, bias)
