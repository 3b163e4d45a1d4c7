"""`gelu_and_mul` in Triton: triton_kernels/activation.py."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels import arguments, triton_kernels
from ir_kernels.silu_and_mul.triton import run

_FORMULAS = {"none": "gelu", "tanh": "gelu_tanh"}


def register(op: IrOp) -> None:
    """Register provider `triton`; opaque, since compilers do not trace into a kernel."""
    op.register_impl(
        "triton",
        supported=triton_kernels.availability,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
    )(gelu_and_mul)


def supports_args(x: Tensor, approximate: str = "none") -> bool | str:
    """Any layout."""
    if approximate not in _FORMULAS:
        return f"knows approximate `none` and `tanh`, not `{approximate}`"
    return arguments.activation(x, triton_kernels.device_type()) or True


def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """One pass, float32 inside."""
    return run(x, _FORMULAS[approximate])
