"""Products merged with a collective: what their providers take, and the rows of each step.

Owns no product: `linear` chooses it, so that a merged product has the numbers, the weight layout
and the batch invariance of the one that it stands for.
"""

from itertools import pairwise

from torch import Tensor

import ir_core as ir
from ir_core.ops.panel_layout import PANEL16
from ir_core.weight_layouts import PLAIN
from ir_kernels import arguments
from ir_kernels.all_reduce.transport import refusal

LAYOUTS = (PANEL16, PLAIN)
"""The weight layouts that `linear` reads, by one provider or another."""

# Of all ranks together. A step reads the whole weight again, which few rows do not pay for.
_STEP_ROWS = 512


def product_refusal(
    x: Tensor, weight: Tensor, bias: Tensor | None, axis: str, provider: str, device: str
) -> str:
    """Why a provider has no part in this call, asked of argument views; "" if it has."""
    reason = refusal(x, axis, provider, device)
    if reason:
        return reason
    if x.ndim == 1:
        return "takes rows, two dims at least; x has 1"
    return arguments.same_dtype(x, weight, "weight") or (
        "" if bias is None else arguments.same_dtype(x, bias, "bias")
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None, layout: str) -> Tensor:
    """`linear` by the provider that it would have chosen for these arguments."""
    result: Tensor = ir.ops.linear(x, weight, bias, layout)
    return result


def steps(num_rows: int, size: int) -> tuple[tuple[int, int], ...]:
    """Parts [begin, end) of the `num_rows` rows that each of `size` ranks has: the same on all.

    Without rows there is one empty part, so that ranks still meet.
    """
    most = -(-_STEP_ROWS // size)
    count = max(1, -(-num_rows // most))
    length = -(-num_rows // count)
    ends = [min(index * length, num_rows) for index in range(count + 1)]
    return tuple(pairwise(ends))
