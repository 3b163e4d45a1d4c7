"""`linear` for batch invariance: a row gets the same bits alone and in every batch.

Shapes: T tokens, I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ir_core import IrOp


def register(op: IrOp) -> None:
    """Register provider `rowwise`; opaque, since it loops over the tokens."""
    op.register_impl("rowwise", opaque=True, batch_invariant=True)(linear)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, layout: str = "plain") -> Tensor:
    """Each row is a product of its own."""
    x_TI = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    # A copy, since the order of a library's sum may depend on where in a cache line a row starts.
    rows = [row.clone(memory_format=torch.contiguous_format) for row in x_TI.split(1)]
    out_TO = torch.cat([functional.linear(row, weight, bias) for row in rows])
    return out_TO.view(*x.shape[:-1], weight.shape[0])
