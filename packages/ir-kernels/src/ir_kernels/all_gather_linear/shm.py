"""`all_gather_linear` over shared memory, in steps: no rank holds the rows of all.

Shapes: T tokens, R rows of each rank, I inputs, O outputs.
"""

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
    )(all_gather_linear)


def supports_args(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> bool | str:
    """Several ranks with a segment, and floats of one dtype on the CPU."""
    return product_refusal(x, weight, bias, group, "shm", "cpu") or True


def all_gather_linear(
    x: Tensor,
    num_tokens: int,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: str = "plain",
    group: str = "tp",
) -> Tensor:
    """Each step gathers the same rows of every rank, and multiplies those that are no padding.

    The padding is behind the last rows of the last ranks, so it is the end of every step too.
    """
    size = groups.get_group(group).size
    num_rows = x.shape[0]
    parts = steps(num_rows, size)
    if len(parts) == 1 or not 0 <= num_tokens <= size * num_rows:
        return product(_gathered(x, num_tokens, group), weight, bias, layout)
    out_TO = x.new_empty((num_tokens, *x.shape[1:-1], weight.shape[0]))
    shares = [out_TO[rank * num_rows : (rank + 1) * num_rows] for rank in range(size)]
    for begin, end in parts:
        places = [share[begin:end] for share in shares]
        there = sum(place.shape[0] for place in places)
        part_TO = product(_gathered(x[begin:end], there, group), weight, bias, layout)
        for place, rows in zip(places, part_TO.split(end - begin), strict=False):
            place.copy_(rows)
    return out_TO


def _gathered(x: Tensor, num_tokens: int, group: str) -> Tensor:
    with failures("all_gather_linear", "shm", group):
        gathered: Tensor = kernels.shm_all_gather.default(segment_of(group), x, num_tokens)
    return gathered
