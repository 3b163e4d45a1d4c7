"""`all_gather_linear` by torch's product that starts with the rows that are there, on CUDA."""

from torch import Tensor

from ir_core import IrOp, groups
from ir_kernels import symmetric_memory
from ir_kernels.all_reduce.transport import failures


def register(op: IrOp) -> None:
    """Register provider `symm_mem`."""
    op.register_impl(
        "symm_mem",
        supported=symmetric_memory.availability,
        supports_args=supports_args,
        opaque=True,
    )(all_gather_linear)


def supports_args(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> bool | str:
    """Several ranks with a process group of NCCL, aligned floats of one dtype, and no bias."""
    return symmetric_memory.refusal(x, weight, bias, group) or True


def all_gather_linear(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """The product of every rank's rows, padding included, which is cut off.

    Raises:
        RuntimeError: the ranks have fewer than `num_tokens` rows.
    """
    if groups.get_group(group).size * x.shape[0] == 0:
        return x.new_empty((0, *x.shape[1:-1], weight.shape[0])).narrow(0, 0, num_tokens)
    with failures("all_gather_linear", "symm_mem", group):
        name = symmetric_memory.group_name(group)
        _, (out,) = symmetric_memory.ops().fused_all_gather_matmul(
            x.contiguous(), [weight.t()], 0, name, return_A=False
        )
    kept: Tensor = out.narrow(0, 0, num_tokens)
    return kept if num_tokens == out.shape[0] else kept.clone()
