"""The dense projection. Owns its meaning; packs no weights."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.ops.workload import Workload, workloads


@register_op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`: `x` [..., in], `weight` [out, in], `bias` [out] or None.

    Returns [..., out] of `x`'s dtype, which is the weight's too. Sums are at least float32 and are
    rounded once; their order is the implementation's.
    """
    return functional.linear(x, weight, bias)


@linear.register_input_generator
@workloads(
    Workload(
        "one-row",
        "decode of one request",
        {"num_tokens": 1, "shape": (1536, 576)},
        bench=True,
        moves_all_bytes=True,
    ),
    Workload(
        "batch", "decode of 32 requests", {"num_tokens": 32, "shape": (576, 1536)}, bench=True
    ),
    Workload(
        "prefill", "bound by arithmetic", {"num_tokens": 128, "shape": (960, 576)}, bench=True
    ),
    Workload("odd", "no tile divides it", {"num_tokens": 3, "shape": (13, 37)}),
    Workload("bias", "q, k and v of Qwen2", {"num_tokens": 5, "biased": True}),
    Workload("deep", "a long sum", {"num_tokens": 2, "shape": (16, 4096)}),
)
def _linear_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int] = (48, 64),
    biased: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, shape[1], generator=random).to(dtype)
    weight = (torch.randn(shape, generator=random) * shape[1] ** -0.5).to(dtype)
    bias = torch.randn(shape[0], generator=random).to(dtype)
    return x, weight, bias if biased else None
