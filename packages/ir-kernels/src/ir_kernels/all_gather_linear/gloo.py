"""`all_gather_linear` over a torch process group of backend gloo: one op after the other."""

from torch import Tensor

from ir_core import IrOp
from ir_kernels.all_gather import gloo
from ir_kernels.all_reduce import process_group
from ir_kernels.rank_products import LAYOUTS, product, product_refusal


def register(op: IrOp) -> None:
    """Register provider `gloo`; as batch-invariant as the `linear` that is chosen."""
    op.register_impl(
        "gloo",
        supported=process_group.has_gloo,
        supports_args=supports_args,
        opaque=True,
        batch_invariant=True,
        layouts=LAYOUTS,
    )(all_gather_linear)


def supports_args(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> bool | str:
    """Several ranks with a process group, and floats of one dtype on the CPU."""
    return product_refusal(x, weight, bias, group, "gloo", "cpu") or True


def all_gather_linear(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """All rows, then their product: a step of gloo costs more than it could hide."""
    return product(gloo.all_gather(x, num_tokens, group), weight, bias, layout)
