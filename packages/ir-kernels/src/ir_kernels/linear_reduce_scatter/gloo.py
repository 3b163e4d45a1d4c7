"""`linear_reduce_scatter` over a torch process group of backend gloo: one op after the other."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels.all_reduce import process_group
from ir_kernels.rank_products import LAYOUTS, product, product_refusal
from ir_kernels.reduce_scatter import gloo


def register(op: IrOp) -> None:
    """Register provider `gloo`; as batch-invariant as the `linear` that is chosen."""
    op.register_impl(
        "gloo",
        supported=process_group.has_gloo,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
        layouts=LAYOUTS,
    )(linear_reduce_scatter)


def supports_args(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> bool | str:
    """Several ranks with a process group, and floats of one dtype on the CPU."""
    return product_refusal(x, weight, bias, group, "gloo", "cpu") or True


def linear_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """The whole product, then its exchange: a step of gloo costs more than it could hide."""
    return gloo.reduce_scatter(product(x, weight, bias, layout), group)
