"""What the library's ops return, as metadata only. Keeps step with csrc/binding.cpp."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """A contiguous tensor like `x`."""
    return x.new_empty(x.shape)


def silu_and_mul(x: Tensor) -> Tensor:
    """A contiguous tensor like half of `x`."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def quantize_int8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous int8 like `x`, and a float32 for each row."""
    scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.int8), scale


def quantize_fp8_static(x: Tensor, scale: Tensor) -> Tensor:
    """Contiguous float8_e4m3fn like `x`."""
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn)


def quantize_fp8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous float8_e4m3fn like `x`, and a float32 for each row."""
    scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), scale


def rms_norm_quantize_int8_per_token(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """As `quantize_int8_per_token`."""
    return quantize_int8_per_token(x)


def fused_add_rms_norm_quantize_int8_per_token(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `quantize_int8_per_token`, and a contiguous tensor like `x`."""
    return *quantize_int8_per_token(x), x.new_empty(x.shape)


def silu_and_mul_quantize_int8_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_int8_per_token` of half of `x`."""
    return quantize_int8_per_token(silu_and_mul(x))


def rotary_embedding(
    query: Tensor,
    key: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    """Contiguous tensors like `query` and `key`."""
    return query.new_empty(query.shape), key.new_empty(key.shape)


def qk_norm_rope(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    epsilon: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    """As `rotary_embedding`."""
    return rotary_embedding(query, key, positions, cos_sin_cache, head_size, is_neox)


def sample_tokens(
    x: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    key: Tensor,
    position: Tensor,
) -> Tensor:
    """An id for each row of `x`."""
    return top_k.new_empty(x.shape[0])


def linear_panels(x: Tensor, weight: Tensor, bias: Tensor | None, in_order: bool = False) -> Tensor:
    """A contiguous tensor with a column for each row of `weight`."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def linear_w4a16_panels(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    minimum: Tensor | None,
    bias: Tensor | None,
    group_size: int,
) -> Tensor:
    """As `linear_panels`."""
    return linear_panels(x, weight, bias)


def linear_w8a16_panels(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, group_size: int
) -> Tensor:
    """As `linear_panels`."""
    return linear_panels(x, weight, bias)


def linear_w8a8_panels(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None,
) -> Tensor:
    """As `linear_panels`, in `dtype`."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def embedding_panels(input_ids: Tensor, weight: Tensor) -> Tensor:
    """A row of `weight` for each id."""
    return weight.new_empty((input_ids.shape[0], weight.shape[1]))


def embedding_w8a16_panels(
    input_ids: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype, group_size: int
) -> Tensor:
    """A row of `dtype` for each id."""
    return weight.new_empty((input_ids.shape[0], weight.shape[1]), dtype=dtype)


def nothing(*_: Any) -> None:
    """The op only writes into its arguments."""


FAKES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": nothing,
        "silu_and_mul": silu_and_mul,
        "quantize_int8_per_token": quantize_int8_per_token,
        "rms_norm_quantize_int8_per_token": rms_norm_quantize_int8_per_token,
        "fused_add_rms_norm_quantize_int8_per_token": fused_add_rms_norm_quantize_int8_per_token,
        "silu_and_mul_quantize_int8_per_token": silu_and_mul_quantize_int8_per_token,
        "rotary_embedding": rotary_embedding,
        "qk_norm_rope": qk_norm_rope,
        "paged_attention": nothing,
        "rotary_paged_attention": nothing,
        "sample_tokens": sample_tokens,
        "linear_panels": linear_panels,
        "linear_w4a16_panels": linear_w4a16_panels,
        "linear_w8a16_panels": linear_w8a16_panels,
        "linear_w8a8_panels": linear_w8a8_panels,
        "embedding_panels": embedding_panels,
        "embedding_w8a16_panels": embedding_w8a16_panels,
    }
)

CUDA_FAKES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "quantize_fp8_static": quantize_fp8_static,
        "quantize_fp8_per_token": quantize_fp8_per_token,
        "write_kv_cache": nothing,
    }
)
"""Those of ops that exist on CUDA devices alone."""
