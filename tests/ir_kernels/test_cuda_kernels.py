"""CUDA kernels of provider `vllm_c`, emulated on the CPU: the conformance suite, and what it lacks.

The provider's functions, the torch binding and the kernels' sources are those that run on a GPU;
the headers that give them CUDA are not.
"""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import emulated_cuda
import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core import testing
from ir_core.ops import paged_cache

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The emulation has one thread, whatever torch has.
MEANINGLESS = ("keeps-threads-apart",)

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(emulated_cuda.compiler() is None, reason="no g++ to build the emulation"),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated_cuda.build(tmp_path_factory.mktemp("emulated_cuda"))


@pytest.fixture(scope="session")
def kernels(library: Path) -> Any:
    return emulated_cuda.load(library)


def provider(op: str) -> ModuleType:
    return importlib.import_module(f"ir_kernels.{op}.vllm_c")


def emulated_op(name: str, kernels: Any, monkeypatch: pytest.MonkeyPatch) -> ir.IrOp:
    """A copy of an op whose provider `vllm_c` calls the emulated kernels."""
    module = provider(name)
    monkeypatch.setattr(module, "kernels", kernels)
    op = testing.fresh_registry([ir.registry()[name]])[name]
    op.register_impl("vllm_c", inplace=name == "fused_add_rms_norm", batch_invariant=True)(
        getattr(module, name)
    )
    return op


@pytest.mark.parametrize("name", emulated_cuda.OPS)
def test_emulated_kernels_conform(name: str, kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    op = emulated_op(name, kernels, monkeypatch)
    checks = [each for each in testing.CHECKS if each.name not in MEANINGLESS]
    report = testing.check([op], providers=["vllm_c"], checks=checks)
    assert report.ok, report.to_text()
    passed = {each.check for each in report.findings if each.outcome is testing.Outcome.PASSED}
    assert {"matches-native", "rounds-like-native", "reads-strides", "keeps-rows-apart"} <= passed


@pytest.mark.parametrize("size", [1, 7, 8, 31, 256, 8192 + 8, 16384, 20000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_size_are_normalised_and_quantised(
    size: int, dtype: torch.dtype, kernels: Any
) -> None:
    """Less than a vector, whole warps, and more than registers hold."""
    x, weight = torch.randn(2, size).to(dtype), torch.randn(size).to(dtype)
    expected = ir.ops.rms_norm.native.fn(x, weight, 1e-5, None)
    torch.testing.assert_close(kernels.rms_norm.default(x, weight, 1e-5), expected)
    for name in ("quantize_int8_per_token", "quantize_fp8_per_token"):
        q, scale = getattr(kernels, name).default(x)
        native_q, native_scale = ir.registry()[name].native.fn(x)
        assert torch.equal(scale, native_scale)
        assert torch.equal(q.view(torch.uint8), native_q.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_becomes_natives_in_fp8(dtype: torch.dtype, kernels: Any) -> None:
    """Ties, subnormals, infinities and NaN among them."""
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(256, 256)
    for scale in (torch.ones(1), torch.full((), 0.37)):
        got = kernels.quantize_fp8_static.default(x, scale).float()
        expected = ir.ops.quantize_fp8_static.native.fn(x, scale).float()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alignment_changes_no_bit(dtype: torch.dtype, kernels: Any) -> None:
    wide, weight = torch.randn(3, 520).to(dtype), torch.randn(512).to(dtype)
    shifted = wide[:, 3:515]
    aligned = shifted.clone()
    for call in (
        lambda x: kernels.rms_norm.default(x, weight, 1e-5),
        kernels.silu_and_mul.default,
        lambda x: kernels.quantize_int8_per_token.default(x)[0],
        lambda x: kernels.quantize_fp8_per_token.default(x)[0].view(torch.uint8),
    ):
        assert torch.equal(call(shifted), call(aligned))


def test_sum_and_norm_are_written_where_strided_rows_lie(kernels: Any) -> None:
    memory, residual = torch.randn(4, 3, 40), torch.randn(3, 4, 32)
    x, turned = memory[:, :, 5:37], residual.transpose(0, 1)
    margin = memory[:, :, :5].clone(), memory[:, :, 37:].clone()
    normal, total = ir.ops.fused_add_rms_norm.native.fn(x.clone(), turned.clone(), None, 1e-5, 24)
    kernels.fused_add_rms_norm.default(x, turned, None, 1e-5, 24)
    torch.testing.assert_close(x, normal)
    assert torch.equal(turned, total)
    assert torch.equal(memory[:, :, :5], margin[0])
    assert torch.equal(memory[:, :, 37:], margin[1])


def new_tokens(dtype: torch.dtype, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values inside wider memory, and slots of which one is padding."""
    key = torch.randn(5, 3, head_size).to(dtype)
    value = torch.randn(5, 3, head_size + 3).to(dtype)[:, :, 1:-2]
    return key, value, torch.tensor([14, 0, -1, 7, 3])


@pytest.mark.parametrize("head_size", [10, 64])
@pytest.mark.parametrize("cache_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cache_write_stores_what_native_does(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_size: int, kernels: Any
) -> None:
    cache = torch.full((4, 2, 3, 4, head_size), torch.nan).to(cache_dtype)
    expected = cache.clone()
    tokens = new_tokens(dtype, head_size)
    paged_cache.write_tokens(*tokens[:2], expected, tokens[2])
    kernels.write_kv_cache.default(*tokens[:2], cache, tokens[2])
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def test_cache_write_takes_a_cache_of_any_strides(kernels: Any) -> None:
    cache = torch.zeros(2, 4, 4, 3, 16).permute(1, 0, 3, 2, 4)
    expected = cache.clone()
    key, value, slots = new_tokens(torch.float32, 16)
    paged_cache.write_tokens(key, value, expected, slots)
    kernels.write_kv_cache.default(key, value, cache, slots)
    assert torch.equal(cache, expected)


def test_arguments_that_do_not_fit_are_named(kernels: Any) -> None:
    x, cache = torch.randn(2, 16), torch.zeros(2, 2, 3, 4, 16)
    key, value, slots = new_tokens(torch.float32, 16)
    refused = {
        "`weight` must be a vector of 16": lambda: kernels.rms_norm.default(x, x[0, :8], 1e-5),
        "`x` must be float32, bfloat16 or float16": lambda: kernels.silu_and_mul.default(x.int()),
        "must be even": lambda: kernels.silu_and_mul.default(x[:, :15]),
        "so no scale": lambda: kernels.quantize_fp8_per_token.default(x[:, :0]),
        "one float32": lambda: kernels.quantize_fp8_static.default(x, x[0]),
        "is expanded": lambda: kernels.fused_add_rms_norm.default(
            x[:1].expand(2, 16), x.clone(), None, 1e-5
        ),
        "same dtype and shape": lambda: kernels.fused_add_rms_norm.default(x, x[:1], None, 1e-5),
        r"`key` must be \[T, 3, 16\]": lambda: kernels.write_kv_cache.default(
            key[:, :2], value, cache, slots
        ),
        "one for each of 5": lambda: kernels.write_kv_cache.default(key, value, cache, slots[:4]),
    }
    for words, call in refused.items():
        with pytest.raises(RuntimeError, match=words):
            call()


def test_a_slot_outside_the_cache_stops_the_kernel(library: Path) -> None:
    code = (
        "import sys, torch\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "tokens = torch.ones(1, 3, 16), torch.ones(1, 3, 16)\n"
        "cache = torch.zeros(2, 2, 3, 4, 16)\n"
        "write = torch.ops.ir_kernels_emulated.write_kv_cache.default\n"
        "write(*tokens, cache, torch.tensor([7]))\n"
        "print('written')\n"
        "write(*tokens, cache, torch.tensor([8]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "a thread trapped" in done.stderr
