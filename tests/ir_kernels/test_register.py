"""Registration: what `register` enters where, that imports enter nothing, and who is chosen."""

import subprocess
import sys

import pytest
import torch

import ir_core as ir
import ir_kernels
from ir_core import testing

COMPILED_OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding")
CONFORMING_OPS = (
    *COMPILED_OPS,
    "qk_norm_rope",
    "quantize_int8_per_token",
    "rms_norm_quantize_int8_per_token",
    "fused_add_rms_norm_quantize_int8_per_token",
    "silu_and_mul_quantize_int8_per_token",
    "linear",
    "linear_w4a16",
    "linear_w8a16",
    "linear_w8a8",
    "embedding",
    "embedding_w8a16",
    "paged_attention",
    "rotary_paged_attention",
)
OTHER_DTYPES = (torch.float32, torch.float16)


def implementations(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each of the ops with each provider of this package."""
    fresh = testing.fresh_registry([ir.registry()[name] for name in ir.registry()])
    ir_kernels.register(fresh)
    pairs = [(name, provider) for name in names for provider in fresh[name].implementations]
    return [(name, provider) for name, provider in pairs if provider != "native"]


def test_every_op_gets_its_providers(registry: ir.Registry) -> None:
    providers = {name: set(registry[name].implementations) - {"native"} for name in COMPILED_OPS}
    ours = {"vllm_c", "aiter", "xpu_kernels", "triton"}
    assert all(each == ours for each in providers.values()), providers


def test_registering_twice_changes_nothing(registry: ir.Registry) -> None:
    before = {name: list(registry[name].implementations) for name in COMPILED_OPS}
    ir_kernels.register(registry)
    assert {name: list(registry[name].implementations) for name in COMPILED_OPS} == before


def test_import_registers_nothing_and_loads_no_library() -> None:
    code = (
        "import ir_kernels, ir_core, torch\n"
        "assert list(ir_core.ops.rms_norm.implementations) == ['native']\n"
        "ir_kernels.register()\n"
        "assert 'vllm_c' in ir_core.ops.rms_norm.implementations\n"
        "assert not torch.ops.loaded_libraries, torch.ops.loaded_libraries\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", COMPILED_OPS)
def test_vllm_c_is_chosen_when_named(name: str, registry: ir.Registry) -> None:
    op = registry[name]
    with registry.priorities.override({name: ["aiter", "vllm_c"]}):
        selection = op.select(*op.generate_inputs(num_tokens=3, dtype=torch.bfloat16))
    assert selection.provider == "vllm_c"


@pytest.mark.skipif(torch.version.hip is not None, reason="a ROCm machine")
def test_aiter_says_what_it_lacks(registry: ir.Registry) -> None:
    for name in COMPILED_OPS:
        implementation = registry[name].implementations["aiter"]
        assert not implementation.supported
        assert implementation.unsupported_reason == (
            "needs a ROCm GPU; this torch is built without HIP"
        )


@pytest.mark.skipif(torch.xpu.is_available(), reason="a machine with an Intel GPU")
def test_xpu_kernels_says_what_it_lacks(registry: ir.Registry) -> None:
    for name in COMPILED_OPS:
        implementation = registry[name].implementations["xpu_kernels"]
        assert not implementation.supported
        assert implementation.unsupported_reason.startswith("needs an Intel GPU; torch sees none")


@pytest.mark.usefixtures("compiled")
def test_the_librarys_bytes_are_in_the_fingerprint(registry: ir.Registry) -> None:
    fingerprint = registry["rms_norm"].implementations["vllm_c"].fingerprint()
    assert fingerprint.digest is not None, fingerprint.reason
    assert any("ir_kernels_c.so" in name for name, _ in fingerprint.factors)


# `make check-ops` has bfloat16. Rows one by one are hundreds of thousands of calls, which another
# load on the cores makes slow.
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("name", "provider"), implementations(CONFORMING_OPS))
def test_every_provider_here_conforms(name: str, provider: str, registry: ir.Registry) -> None:
    op = registry[name]
    report = testing.check([op], providers=[provider], dtypes=OTHER_DTYPES)
    assert not report.failures, report.to_text()
    assert report.ok or not op.implementations[provider].supported, report.to_text()
