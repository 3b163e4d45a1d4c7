"""Gated activations: `silu_and_mul` and `gelu_and_mul`. Owns their meaning; knows no kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ir_core.default_registry import register_op
from ir_core.ops.workload import Workload, workloads

_WORKLOADS = (
    Workload(
        "one-row", "decode of one request", {"num_tokens": 1, "width": 1536}, 0.02, bench=True
    ),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "width": 1536}, 0.02, bench=True),
    Workload("odd-width", "no vector width divides it", {"num_tokens": 3, "width": 37}),
    Workload(
        "prefill",
        "bound by bandwidth",
        {"num_tokens": 512, "width": 4096},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    ),
    Workload("large", "saturates the gate", {"num_tokens": 8, "width": 96, "scale": 50.0}, 0.02),
)


@register_op
def silu_and_mul(x: Tensor) -> Tensor:
    """`silu(gate) * up` for `x` [..., 2*D] = gate | up; returns [..., D] of `x`'s dtype.

    Computed in float32 and rounded once. Source: arXiv:2002.05202 (SwiGLU).
    """
    # Not batch-invariant: torch's exp of an element depends on whether it falls into a whole vector
    # of its thread's share.
    gate, up = _halves(x)
    return (functional.silu(gate) * up).to(x.dtype)


@register_op
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """`gelu(gate) * up` for `x` [..., 2*D] = gate | up; returns [..., D] of `x`'s dtype.

    Computed in float32 and rounded once. `approximate` is "none" (erf) or "tanh"; anything else is
    a RuntimeError. Source: arXiv:2002.05202 (GEGLU).
    """
    gate, up = _halves(x)
    return (functional.gelu(gate, approximate=approximate) * up).to(x.dtype)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous().chunk(2, dim=-1)
    return gate, up


@silu_and_mul.register_input_generator
@workloads(*_WORKLOADS)
def _silu_and_mul_inputs(
    num_tokens: int, dtype: torch.dtype, *, width: int = 64, scale: float = 1.0, seed: int = 0
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    return ((torch.randn(num_tokens, 2 * width, generator=random) * scale).to(dtype),)


@gelu_and_mul.register_input_generator
@workloads(
    *_WORKLOADS,
    Workload(
        "tanh", "the other formula", {"num_tokens": 8, "width": 96, "approximate": "tanh"}, 0.02
    ),
)
def _gelu_and_mul_inputs(
    num_tokens: int, dtype: torch.dtype, *, approximate: str = "none", **shape: Any
) -> tuple[Any, ...]:
    (x,) = _silu_and_mul_inputs(num_tokens=num_tokens, dtype=dtype, **shape)
    return x, approximate


gelu_and_mul.override_tolerance(
    torch.float32,
    atol=1e-4,
    rtol=1e-5,
    reason="1 + erf cancels for a negative gate, and what is left is multiplied by up",
)
