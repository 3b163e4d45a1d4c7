"""`linear_reduce_scatter` over shared memory, in steps: no rank holds the product of all rows.

Shapes: T tokens, R rows of each rank, I inputs, O outputs.
"""

import torch
from torch import Tensor

from ir_core import IrOp, groups
from ir_kernels import library
from ir_kernels.all_reduce.transport import failures, segment_of
from ir_kernels.library import kernels
from ir_kernels.rank_products import LAYOUTS, product, product_refusal, steps


def register(op: IrOp) -> None:
    """Register provider `shm`; as batch-invariant as the `linear` that is chosen."""
    op.register_impl(
        "shm",
        supported=library.availability,
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
    """Several ranks with a segment, and floats of one dtype on the CPU."""
    return product_refusal(x, weight, bias, group, "shm", "cpu") or True


def linear_reduce_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """Each step multiplies the same rows of every rank's share, and sums them."""
    handle, size = segment_of(group), groups.get_group(group).size
    num_rows = -(-x.shape[0] // size)
    done: list[Tensor] = []
    for begin, end in steps(num_rows, size):
        part_TI = x if end - begin == num_rows else _rows_of_all(x, begin, end, num_rows, size)
        part_TO = product(part_TI, weight, bias, layout)
        with failures("linear_reduce_scatter", "shm", group):
            done.append(kernels.shm_reduce_scatter.default(handle, part_TO))
    return done[0] if len(done) == 1 else torch.cat(done)


def _rows_of_all(x: Tensor, begin: int, end: int, num_rows: int, size: int) -> Tensor:
    """Rows `begin` to `end` of every rank's share, in order of ranks, as far as there are any.

    Only the last ranks lack rows, and so few that the collective, which rounds up, again deals
    `end - begin` to each.
    """
    starts = [min(rank * num_rows, x.shape[0]) for rank in range(size)]
    return torch.cat([x[start + begin : min(start + end, x.shape[0])] for start in starts])
