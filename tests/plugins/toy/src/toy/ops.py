"""The op `toy_blend`. Owns its meaning and its workloads."""

import torch
from torch import Tensor

import ir_core as ir
from ir_core.testing import Workload, workloads


def register() -> None:
    """Declare the ops of this distribution."""

    @ir.register_op(batch_invariant=True)
    def toy_blend(x: Tensor, x_other: Tensor, share: float = 0.5) -> Tensor:
        """`share` of `x` and the rest of `x_other`, float32 inside, rounded once."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) * share + x_other.to(wide) * (1 - share)).to(x.dtype)

    toy_blend.register_input_generator(_inputs)


@workloads(Workload("row", "a decode step", {"num_tokens": 4, "hidden": 96}, 0.02, bench=True))
def _inputs(
    num_tokens: int, dtype: torch.dtype, *, hidden: int = 16, seed: int = 0
) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x, other = torch.randn(2, num_tokens, hidden, generator=random)
    return x.to(dtype), other.to(dtype)
