"""Fixtures of the kernel tests: the library, each ISA in turn, and fresh ops."""

from collections.abc import Iterator

import pytest

import ir_core as ir
import ir_kernels
from ir_core import testing
from ir_kernels import library

SUPPORTED, REASON = library.availability()
ISAS = library.isas() if SUPPORTED else ("none",)


@pytest.fixture(scope="session")
def compiled() -> None:
    """Skip where the library is not there; test_library says whether that is right."""
    if not SUPPORTED:
        pytest.skip(REASON)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, compiled: None) -> Iterator[str]:
    """Each instruction set that this machine can run, in turn."""
    before = library.isa()
    library.set_isa(request.param)
    yield request.param
    library.set_isa(before)


@pytest.fixture
def registry() -> ir.Registry:
    """Copies of the shipped ops with this package's providers, apart from the default registry."""
    ops = (
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "gelu_and_mul",
        "quantize_fp8_static",
        "quantize_fp8_per_token",
        "quantize_int8_per_token",
        "rms_norm_quantize_int8_per_token",
        "fused_add_rms_norm_quantize_int8_per_token",
        "silu_and_mul_quantize_int8_per_token",
        "rotary_embedding",
        "qk_norm_rope",
        "linear",
        "paged_attention",
        "rotary_paged_attention",
        "sample_tokens",
        "linear_w4a16",
        "linear_w8a16",
        "linear_w8a8",
        "embedding",
        "embedding_w8a16",
        "all_reduce",
        "all_reduce_add_rms_norm",
        "reduce_scatter",
        "all_gather",
        "linear_reduce_scatter",
        "all_gather_linear",
    )
    fresh = testing.fresh_registry([ir.registry()[name] for name in ops])
    ir_kernels.register(fresh)
    return fresh
