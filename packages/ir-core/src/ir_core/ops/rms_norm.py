"""RMS normalisation, alone and after a residual add. Owns their meaning; knows no kernel."""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.ops.workload import Workload, workloads

_WORKLOADS = (
    Workload(
        "one-row", "decode of one request", {"num_tokens": 1, "hidden": 576}, 0.01, bench=True
    ),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "hidden": 576}, 0.01, bench=True),
    Workload("odd-width", "no vector width divides it", {"num_tokens": 3, "hidden": 37}),
    Workload("wide", "a row longer than one block", {"num_tokens": 17, "hidden": 4096}, 0.01),
    Workload(
        "prefill",
        "bound by bandwidth",
        {"num_tokens": 512, "hidden": 2048},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    ),
    Workload("no-weight", "an unweighted norm", {"num_tokens": 5, "hidden": 64, "weighted": False}),
    Workload(
        "float32-weight",
        "the weight decides where the norm is rounded",
        {"num_tokens": 16, "hidden": 576, "weight_dtype": torch.float32},
        0.01,
    ),
    Workload(
        "partial-variance",
        "statistics over part of the row",
        {"num_tokens": 5, "hidden": 64, "variance_size": 48},
        0.01,
    ),
    Workload(
        "heads", "a norm per head, as on q and k", {"num_tokens": 7, "heads": 3, "hidden": 64}
    ),
    Workload("large", "values near 1000", {"num_tokens": 9, "hidden": 128, "scale": 1000.0}, 0.01),
)


@register_op(batch_invariant=True)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Root-mean-square normalisation over the last dim.

    `x` [..., H]; `weight` [H] or None; returns [..., H] of `x`'s dtype, contiguous. The statistics
    are float32, over the first `variance_size` elements if given. The normalised value is rounded
    to the weight's dtype, multiplied, then cast to `x`'s dtype. Source: arXiv:1910.07467.
    """
    return _normalise(x, x.dtype, weight, epsilon, variance_size)


@register_op(allow_inplace=True, batch_invariant=True)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`x + x_residual` and its `rms_norm`: (normalised, sum), contiguous, of `x`'s shape and dtype.

    The sum is formed in float32 and rounded once to `x`'s dtype; that value is the second output
    and the norm's input, so the op equals an add followed by `rms_norm` bit for bit.
    """
    wide = _accumulation_dtype(x)
    residual = (x.to(wide) + x_residual.to(wide)).to(x.dtype).contiguous()
    return _normalise(residual, x.dtype, weight, epsilon, variance_size), residual


@rms_norm.register_fake
def _rms_norm_fake(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """As native, which takes a dozen ops on fakes."""
    return x.new_empty(x.shape)


@fused_add_rms_norm.register_fake
def _fused_add_rms_norm_fake(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As native, which takes a dozen ops on fakes."""
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _normalise(
    x: Tensor, dtype: torch.dtype, weight: Tensor | None, epsilon: float, size: int | None
) -> Tensor:
    wide = x.to(_accumulation_dtype(x)).contiguous()
    measured = wide if size is None else wide[..., :size]
    normal = wide * torch.rsqrt(measured.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    if weight is None:
        return normal.to(dtype)
    return (normal.to(weight.dtype) * weight).to(dtype)


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


@rms_norm.register_input_generator
@workloads(*_WORKLOADS)
def _rms_norm_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    hidden: int = 64,
    heads: int | None = None,
    weighted: bool = True,
    weight_dtype: torch.dtype | None = None,
    variance_size: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    shape = (num_tokens, hidden) if heads is None else (num_tokens, heads, hidden)
    x = (torch.randn(shape, generator=random) * scale).to(dtype)
    weight = (1 + torch.randn(hidden, generator=random) / 4).to(weight_dtype or dtype)
    return x, weight if weighted else None, 1e-5, variance_size


@fused_add_rms_norm.register_input_generator
@workloads(
    *_WORKLOADS,
    Workload(
        "cancelling",
        "a sum far smaller than its terms shows a second rounding",
        {"num_tokens": 8, "hidden": 256, "scale": 100.0, "cancel": True},
        0.01,
    ),
)
def _fused_add_rms_norm_inputs(
    num_tokens: int,
    dtype: torch.dtype,
    *,
    cancel: bool = False,
    seed: int = 0,
    **shape: Any,
) -> tuple[Any, ...]:
    x, *rest = _rms_norm_inputs(num_tokens=num_tokens, dtype=dtype, seed=seed, **shape)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 1))
    residual = (noise - x.float() if cancel else noise).to(dtype)
    return x, residual, *rest


_FLOAT16 = "the normalised value is rounded before the product, so two half-ulp errors add up"
rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3, reason=_FLOAT16)
fused_add_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3, reason=_FLOAT16)
