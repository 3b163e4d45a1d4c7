"""Sum over the ranks, residual add and norm. Owns no formula: it composes two ops."""

from typing import Any

import torch
from torch import Tensor

from ir_core import groups
from ir_core.default_registry import register_op
from ir_core.ops.collectives import refuse_several_ranks
from ir_core.ops.rms_norm import fused_add_rms_norm
from ir_core.ops.workload import Workload, workloads


@register_op(opaque=True, batch_invariant=True)
def all_reduce_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    group: str = "tp",
) -> tuple[Tensor, Tensor]:
    """`fused_add_rms_norm` of the ranks' sum of `x`: (normalised, sum with the residual).

    `x` [..., H] is this rank's part of the sum; `x_residual` [..., H], of `x`'s dtype, and `weight`
    [H] or None are the same on every rank. The sum over the logical axis `group` is rounded to
    `x`'s dtype before the residual is added, so the op equals `all_reduce` and `fused_add_rms_norm`
    bit for bit, and ranks agree bitwise. Outputs are new, contiguous, of `x`'s shape and dtype.

    Raises:
        CollectiveError: a rank did not come, died, or came with something else; names it.
    """
    refuse_several_ranks("all_reduce_add_rms_norm", group)
    return fused_add_rms_norm.native(x, x_residual, weight, epsilon, variance_size)


@all_reduce_add_rms_norm.register_fake
def _all_reduce_add_rms_norm_fake(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    group: str = "tp",
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


# A norm may round an element to its neighbour.
_FEW = 0.01


@all_reduce_add_rms_norm.register_input_generator
@workloads(
    Workload(
        "one-row", "decode of one request", {"num_tokens": 1, "hidden": 576}, _FEW, bench=True
    ),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "hidden": 576}, _FEW, bench=True),
    Workload("odd", "no world size and no vector width", {"num_tokens": 7, "hidden": 37}),
    Workload("no-weight", "an unweighted norm", {"num_tokens": 5, "weighted": False}),
    Workload(
        "float32-weight",
        "the weight decides where the norm is rounded",
        {"num_tokens": 16, "hidden": 576, "weight_dtype": torch.float32},
        _FEW,
    ),
    Workload(
        "partial-variance",
        "statistics over part of the row",
        {"num_tokens": 5, "hidden": 64, "variance_size": 48},
        _FEW,
    ),
)
def _all_reduce_add_rms_norm_inputs(
    num_tokens: int, dtype: torch.dtype, **options: Any
) -> tuple[Any, ...]:
    return fused_add_rms_norm.generate_inputs(num_tokens=num_tokens, dtype=dtype, **options)


all_reduce_add_rms_norm.override_tolerance(
    torch.float16,
    atol=1e-2,
    rtol=2e-3,
    reason="the normalised value is rounded before the product, so two half-ulp errors add up",
)

# Whether a provider reaches the other ranks is part of a choice.
groups.subscribe(all_reduce_add_rms_norm.forget_choices)
