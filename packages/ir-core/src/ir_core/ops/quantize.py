"""Activations as numbers of eight bits and a scale. Owns their meaning; quantises no weights.

Every op computes in float32, multiplies by the reciprocal of the scale, and rounds to nearest even.
"""

from typing import Any

import torch
from torch import Tensor

from ir_core.default_registry import register_op
from ir_core.errors import ArgumentError
from ir_core.ops.workload import Workload, workloads

_LARGEST_INT8 = 127.0
_LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max
# Its reciprocal is finite, and a row that it scales has no element that overflows.
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


@register_op(batch_invariant=True)
def quantize_fp8_static(x: Tensor, scale: Tensor) -> Tensor:
    """`x / scale` in float8_e4m3fn: `x` [..., H] gives [..., H], contiguous.

    `scale` is one positive, normal float32, [] or [1], known before the call. What is larger than
    448 saturates, infinities too; NaN stays NaN. Source: arXiv:2209.05433.

    Raises:
        ArgumentError: `scale` is something else.
    """
    _check_scale(x, scale)
    wide = _widened(x)
    return _to_fp8(wide * scale.reshape(()).to(wide.dtype).reciprocal())


@register_op(batch_invariant=True)
def quantize_fp8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in float8_e4m3fn by a scale of its own: `x` [..., H] gives (q [..., H], scale).

    `scale` float32 [..., 1] is the row's largest magnitude by 448, and no less than the smallest
    normal number, which is also that of a row of zeros. A row that holds NaN or an infinity has
    such a scale, so none of its elements is dequantised to a finite number. Outputs are contiguous.
    """
    wide = _widened(x)
    scale = _scale_of_rows(wide, _LARGEST_FP8)
    return _to_fp8(wide * scale.to(wide.dtype).reciprocal()), scale


@register_op(batch_invariant=True)
def quantize_int8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in int8 by a scale of its own, symmetric: `x` [..., H] gives (q [..., H], scale).

    `scale` float32 [..., 1] is the row's largest magnitude by 127, and no less than the smallest
    normal number, which is also that of a row of zeros; q is -127 to 127. A row that holds NaN or
    an infinity has such a scale and a q of zeros, so none of its elements is dequantised to a
    finite number. Outputs are contiguous.
    """
    wide = _widened(x)
    scale = _scale_of_rows(wide, _LARGEST_INT8)
    scaled = wide * scale.to(wide.dtype).reciprocal()
    return torch.round(scaled).nan_to_num(0.0).to(torch.int8), scale


@quantize_fp8_static.register_fake
def _quantize_fp8_static_fake(x: Tensor, scale: Tensor) -> Tensor:
    _check_scale(x, scale)
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn)


@quantize_fp8_per_token.register_fake
def _quantize_fp8_per_token_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    return _rows_and_scales(x, torch.float8_e4m3fn)


@quantize_int8_per_token.register_fake
def _quantize_int8_per_token_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    return _rows_and_scales(x, torch.int8)


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def _scale_of_rows(wide: Tensor, largest: float) -> Tensor:
    scale = wide.abs().amax(dim=-1, keepdim=True) / largest
    return scale.to(torch.float32).clamp_min(_SMALLEST_SCALE)


def _to_fp8(scaled: Tensor) -> Tensor:
    return scaled.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(torch.float8_e4m3fn)


def _rows_and_scales(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), scale


def _check_scale(x: Tensor, scale: Tensor) -> None:
    # The truth that implementations are measured by is computed in float64 throughout.
    dtypes = (torch.float32, torch.promote_types(x.dtype, torch.float32))
    if scale.dtype not in dtypes or scale.shape not in (torch.Size(()), torch.Size((1,))):
        raise ArgumentError(
            f"`quantize_fp8_static` got a `scale` of {scale.dtype} and shape {list(scale.shape)}; "
            "it is one torch.float32, of shape [] or [1]."
        )


_WORKLOADS = (
    Workload(
        "one-row", "decode of one request", {"num_tokens": 1, "hidden": 576}, 0.01, bench=True
    ),
    Workload("batch", "decode of 32 requests", {"num_tokens": 32, "hidden": 576}, 0.01, bench=True),
    Workload("odd-width", "no vector width divides it", {"num_tokens": 3, "hidden": 37}, 0.01),
    Workload("wide", "a row longer than one block", {"num_tokens": 17, "hidden": 4096}, 0.01),
    Workload(
        "prefill",
        "bound by bandwidth",
        {"num_tokens": 512, "hidden": 2048},
        checked=False,
        bench=True,
        moves_all_bytes=True,
    ),
    Workload("large", "values near 1000", {"num_tokens": 9, "hidden": 128, "scale": 1000.0}, 0.01),
    Workload("zeros", "no magnitude to scale by", {"num_tokens": 5, "hidden": 64, "scale": 0.0}),
    Workload(
        "tiny",
        "magnitudes by 127 are no longer normal",
        {"num_tokens": 5, "hidden": 64, "scale": 1e-37},
    ),
)


@quantize_fp8_per_token.register_input_generator
@quantize_int8_per_token.register_input_generator
@workloads(*_WORKLOADS)
def _quantize_inputs(
    num_tokens: int, dtype: torch.dtype, *, hidden: int = 64, scale: float = 1.0, seed: int = 0
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)
    return ((torch.randn(num_tokens, hidden, generator=random) * scale).to(dtype),)


@quantize_fp8_static.register_input_generator
@workloads(*_WORKLOADS)
def _quantize_static_inputs(num_tokens: int, dtype: torch.dtype, **shape: Any) -> tuple[Any, ...]:
    (x,) = _quantize_inputs(num_tokens=num_tokens, dtype=dtype, **shape)
    # The larger of the magnitudes saturate.
    return x, torch.full((1,), 2 / _LARGEST_FP8)


for _op in (quantize_fp8_static, quantize_fp8_per_token):
    _op.override_tolerance(
        torch.float8_e4m3fn,
        atol=2.0**-9,
        rtol=2.0**-3,
        reason="what lies near the middle of two numbers may become either",
    )
