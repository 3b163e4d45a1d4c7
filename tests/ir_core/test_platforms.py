import pytest
import torch

from ir_core import IrOpPriorityConfig, Platform
from ir_core.platforms import EXECUTION_MODES, builtin_platform

NORMS = ("rms_norm", "fused_add_rms_norm")
CPU_NORMS = (*NORMS, "qk_norm_rope")


def machine(
    monkeypatch: pytest.MonkeyPatch, cuda: bool = False, hip: str | None = None, xpu: bool = False
) -> Platform:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: xpu)
    monkeypatch.setattr(torch.version, "hip", hip)
    return builtin_platform()


def test_each_machine_has_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = machine(monkeypatch)
    cuda = machine(monkeypatch, cuda=True)
    rocm = machine(monkeypatch, cuda=True, hip="6.3")
    xpu = machine(monkeypatch, xpu=True)
    assert [each.name for each in (cpu, cuda, rocm, xpu)] == ["cpu", "cuda", "rocm", "xpu"]
    for op in NORMS:
        assert cuda.default_priority("eager")[op] == ("vllm_c", "triton", "native")
        assert rocm.default_priority("eager")[op] == ("aiter", "vllm_c", "triton", "native")
        assert xpu.default_priority("eager")[op] == ("xpu_kernels", "native")
        for platform in (cuda, rocm, xpu):
            assert platform.default_priority("inductor")[op] == ("native",)
    for op in ("quantize_fp8_static", "quantize_fp8_per_token", "quantize_int8_per_token"):
        assert cuda.default_priority("eager")[op] == ("vllm_c", "native")
        assert op not in cuda.default_priority("inductor")
    for op in CPU_NORMS:
        assert cpu.default_priority("inductor")[op] == ("vllm_c", "native")


def test_the_cpu_prefers_its_kernels_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = machine(monkeypatch).default_priority("eager")
    for op in (*CPU_NORMS, "silu_and_mul", "rotary_embedding"):
        assert defaults[op] == ("vllm_c", "native")


def test_the_cpu_prefers_the_same_products_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = machine(monkeypatch)
    for mode in EXECUTION_MODES:
        defaults = platform.default_priority(mode)
        assert defaults["linear"] == ("vllm_c", "float32_gemm", "native")
        for op in ("linear_w4a16", "linear_w8a16", "linear_w8a8", "embedding", "embedding_w8a16"):
            assert defaults[op] == ("vllm_c", "native")
        for op in ("paged_attention", "rotary_paged_attention"):
            assert defaults[op] == ("vllm_c", "native")
        for first in ("", "rms_norm_", "fused_add_rms_norm_", "silu_and_mul_"):
            assert defaults[f"{first}quantize_int8_per_token"] == ("vllm_c", "native")


@pytest.mark.parametrize("hip", [None, "6.3"])
def test_gpus_prefer_triton_in_every_mode_to_what_native_cannot_do_fast(
    hip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = machine(monkeypatch, cuda=True, hip=hip)
    for mode in EXECUTION_MODES:
        defaults = platform.default_priority(mode)
        for op in ("linear_w4a16", "paged_attention"):
            assert defaults[op] == ("triton", "native")
    assert platform.default_priority("eager")["gelu_and_mul"] == ("triton", "native")
    assert "gelu_and_mul" not in platform.default_priority("inductor")


def test_a_platform_of_ones_own_overrides_either_hook() -> None:
    class Mine(Platform):
        name = "mine"

        def get_default_ir_op_priority(self) -> IrOpPriorityConfig:
            return IrOpPriorityConfig(rms_norm=["mine", "native"])

    assert Mine().default_priority("inductor") == {"rms_norm": ("mine", "native")}
    assert Platform().default_priority("eager") == {}
    assert repr(Mine()) == "Mine(mine)"
