"""Provider `vllm_c` on an NVIDIA GPU: the suite, captured graphs, streams, devices, the cache."""

from typing import Any

import pytest
import torch
from emulated_cuda import OPS
from gpu_cases import assert_captured_as_eager, check_on_gpu, on_gpu

import ir_core as ir
from ir_core.ops import paged_cache
from ir_core.testing import DTYPES, Outcome
from ir_kernels import cuda_library
from ir_kernels.library import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.version.cuda is None or not torch.cuda.is_available(), reason="needs an NVIDIA GPU"
    ),
]


@pytest.fixture(autouse=True)
def loaded() -> None:
    """On a machine with a GPU and nvcc the library must be there: its absence is a failure."""
    supported, reason = cuda_library.availability()
    if "no nvcc" in reason:
        pytest.skip(reason)
    assert supported, reason


@pytest.mark.timeout(900)
@pytest.mark.parametrize("op", OPS)
def test_kernels_conform_on_the_gpu(op: str, registry: ir.Registry) -> None:
    findings = check_on_gpu(registry[op], "vllm_c")
    failed = [each for each in findings if each.outcome is Outcome.FAILED]
    assert not failed, failed
    assert any(each.outcome is Outcome.PASSED for each in findings)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_captured_graph_computes_what_eager_does(
    op: str, dtype: torch.dtype, registry: ir.Registry
) -> None:
    implementation = registry[op].implementations["vllm_c"]
    inputs: dict[str, Any] = {"num_tokens": 7, "dtype": dtype}
    first, second = (
        on_gpu(implementation.op.generate_inputs(**inputs, seed=seed)) for seed in (0, 1)
    )
    assert_captured_as_eager(implementation, first, second)


@pytest.mark.parametrize("op", OPS)
def test_one_provider_serves_both_devices(op: str, registry: ir.Registry) -> None:
    arguments = registry[op].generate_inputs(num_tokens=3, dtype=torch.bfloat16)
    with registry.priorities.override({op: ["vllm_c"]}):
        assert registry[op].select(*on_gpu(arguments)).provider == "vllm_c"
        on_cpu = registry[op].select(*arguments)
    assert (on_cpu.provider == "vllm_c") != op.startswith("quantize_fp8"), on_cpu.rejections


def test_kernels_run_in_the_current_stream() -> None:
    """Behind work that is still going on there."""
    x = torch.zeros(64, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        x.fill_(2.0)
        out = kernels.rms_norm.default(x, None, 0.0)
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(out, torch.ones_like(out))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_run_on_the_device_of_their_tensors() -> None:
    x = torch.randn(5, 64, device="cuda:1")
    with torch.cuda.device(0):
        out = kernels.silu_and_mul.default(x)
    assert out.device == x.device
    torch.testing.assert_close(out, ir.ops.silu_and_mul.native.fn(x))
    with pytest.raises(RuntimeError, match="`weight` must be on device 1, not 0"):
        kernels.rms_norm.default(x, torch.ones(64, device="cuda:0"), 1e-5)


@pytest.mark.parametrize("size", [1, 7, 256, 8192 + 8, 20000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_rows_have_natives_bits(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(9, size, device="cuda").to(dtype)
    for name in ("quantize_int8_per_token", "quantize_fp8_per_token"):
        q, scale = getattr(kernels, name).default(x)
        native_q, native_scale = ir.registry()[name].native.fn(x)
        assert torch.equal(scale, native_scale)
        assert torch.equal(q.view(torch.uint8), native_q.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_becomes_natives_in_fp8(dtype: torch.dtype) -> None:
    """Ties, subnormals, infinities and NaN among them."""
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(256, 256)
    x, scale = numbers.cuda(), torch.full((), 0.37, device="cuda")
    got = kernels.quantize_fp8_static.default(x, scale).float()
    expected = ir.ops.quantize_fp8_static.native.fn(x, scale).float()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("head_size", [10, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cache_write_stores_what_native_does(dtype: torch.dtype, head_size: int) -> None:
    cache = torch.full((4, 2, 3, 4, head_size), torch.nan, device="cuda").to(dtype)
    key, value = torch.randn(2, 5, 3, head_size, device="cuda").to(dtype)
    slots = torch.tensor([14, 0, -1, 7, 3], device="cuda")
    expected = cache.clone()
    paged_cache.write_tokens(key, value, expected, slots)
    kernels.write_kv_cache.default(key, value, cache, slots)
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("provider", ["flash_attn", "flashinfer"])
def test_attention_libraries_conform_where_they_are(provider: str, registry: ir.Registry) -> None:
    implementation = registry["paged_attention"].implementations[provider]
    if not implementation.supported:
        pytest.skip(implementation.unsupported_reason)
    findings = check_on_gpu(registry["paged_attention"], provider)
    assert not [each for each in findings if each.outcome is Outcome.FAILED]
    inputs = {"num_tokens": 5, "head_size": 128, "block_size": 256, "context": 300}
    arguments = registry["paged_attention"].generate_inputs(**inputs, dtype=torch.bfloat16)
    got, expected = on_gpu(arguments), on_gpu(arguments)
    implementation.fn(*got)
    registry["paged_attention"].native.fn(*expected)
    torch.testing.assert_close(got[3], expected[3], atol=5e-3, rtol=1.6e-2)
