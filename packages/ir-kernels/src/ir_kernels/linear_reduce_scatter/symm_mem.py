"""`linear_reduce_scatter` by torch's product that sends its parts while it goes on, on CUDA.

Shapes: T tokens, R rows of each rank, I inputs.
"""

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
    )(linear_reduce_scatter)


def supports_args(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> bool | str:
    """Several ranks with a process group of NCCL, aligned floats of one dtype, and no bias."""
    return symmetric_memory.refusal(x, weight, bias, group) or True


def linear_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """Torch's op wants as many rows for each rank: zeros make up for those that are not there."""
    size = groups.get_group(group).size
    num_tokens = x.shape[0]
    num_rows = -(-num_tokens // size)
    if num_rows == 0:
        return x.new_empty((0, *x.shape[1:-1], weight.shape[0]))
    x_TI = x.contiguous()
    if num_tokens < size * num_rows:
        x_TI = x.new_zeros((size * num_rows, *x.shape[1:]))
        x_TI[:num_tokens] = x
    with failures("linear_reduce_scatter", "symm_mem", group):
        name = symmetric_memory.group_name(group)
        rows: Tensor = symmetric_memory.ops().fused_matmul_reduce_scatter(
            x_TI, weight.t(), "sum", 0, name
        )
    return rows.contiguous()
