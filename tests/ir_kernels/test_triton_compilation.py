"""Triton kernels compiled ahead of time for GPUs that need not be here."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from triton_launches import OPS, TARGETS, Launch, record

import ir_core as ir
from ir_core.testing import workloads_of
from ir_kernels import triton_kernels

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="package `triton` is not installed"),
    pytest.mark.skipif(triton_kernels.is_interpreted(), reason="kernels are interpreted"),
]


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from an earlier compilation."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def assert_builds(launch: Launch, target: str) -> None:
    compiled = launch.compile(target)
    binary = compiled.asm["hsaco" if target.startswith("gfx") else "cubin"]
    assert binary.startswith(b"\x7fELF")
    # Of float32 no bits may be dropped, even where tensor cores could then multiply it.
    assert "tf32" not in compiled.asm.get("ptx", "")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_builds_for_every_target(op: str, target: str, registry: ir.Registry) -> None:
    launches = record(registry[op], num_tokens=3, dtype=torch.bfloat16)
    assert launches
    for launch in launches:
        assert_builds(launch, target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_merge_of_split_keys_builds(target: str, registry: ir.Registry) -> None:
    inputs = {"num_tokens": 1, "context": 8192, "dtype": torch.bfloat16}
    (merge,) = (
        each for each in record(registry["paged_attention"], **inputs) if each.name == "merge_parts"
    )
    assert_builds(merge, target)


@pytest.mark.parametrize("op", ["linear_w4a16", "paged_attention"])
def test_float32_products_stay_float32_on_blackwell(op: str, registry: ir.Registry) -> None:
    inputs = {"shape": (96, 576)} if op == "linear_w4a16" else {"query_len": 130, "context": 130}
    for launch in record(registry[op], num_tokens=130, dtype=torch.float32, **inputs):
        assert_builds(launch, "sm_100")


@pytest.mark.parametrize("op", ["rms_norm", "rotary_embedding", "silu_and_mul"])
def test_products_and_sums_are_rounded_apart(op: str, registry: ir.Registry) -> None:
    (launch,) = record(registry[op], num_tokens=3, dtype=torch.bfloat16)
    assert "fma.rn.f32" not in launch.compile("sm_90").asm["ptx"]


@pytest.mark.parametrize("op", OPS)
def test_a_batch_of_another_size_compiles_no_kernel_anew(op: str, registry: ir.Registry) -> None:
    variants: dict[str, set[str]] = {}
    for num_tokens in (1, 2, 5, 16, 33, 64):
        for launch in record(registry[op], num_tokens=num_tokens, dtype=torch.bfloat16):
            variants.setdefault(launch.name, set()).add(launch.variant)
    # Many tokens have another tile, and few of attention another kernel, which splits keys.
    most = {"multiply_w4a16": 2, "attend_tiles": 2}
    assert {
        name: len(each) for name, each in variants.items() if len(each) > most.get(name, 1)
    } == {}


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPS)
def test_every_workload_builds_for_every_target(
    op: str, target: str, registry: ir.Registry
) -> None:
    for workload in workloads_of(registry[op]):
        group_size = workload.inputs.get("group_size", 32)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if group_size in (16, 32, 64, 128):
                for launch in record(registry[op], **workload.inputs, dtype=dtype):
                    assert_builds(launch, target)
