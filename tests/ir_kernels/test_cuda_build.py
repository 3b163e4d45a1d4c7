"""The build for CUDA: real nvcc for GPUs that need not be here, and a reason wherever it stops."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulated_cuda
import kernel_builds
import pytest
import torch

from ir_kernels import cuda_library, fakes, library

KERNELS = emulated_cuda.KERNELS
OPS = (*emulated_cuda.SHARED_OPS, *fakes.CUDA_FAKES)
STRICT = ("-Werror", "all-warnings")


@pytest.fixture(scope="module")
def cuda_build() -> Any:
    return kernel_builds.load("cuda_build")


@pytest.fixture(scope="module")
def kernel_build() -> Any:
    return kernel_builds.load("kernel_build")


@pytest.fixture(scope="module")
def nvcc(cuda_build: Any) -> str:
    """A real one: the test requirements bring NVIDIA's wheels."""
    build_error = kernel_builds.load("build_commands").BuildError
    try:
        return cuda_build.find_nvcc(os.environ)
    except build_error as error:
        pytest.skip(str(error))


def fake_tool(path: Path, *, fails_on: str = "nothing-at-all") -> str:
    """A compiler that says it knows two architectures, and fails on commands that name one word."""
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'  *{fails_on}*) echo "error: no such luck" >&2; exit 3;;\n'
        '  *--list-gpu-code*) echo "sm_75 sm_80 sm_90";;\n'
        '  *--version*) echo "fake 1.0";;\n'
        "esac\n"
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'
        "exit 0\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


def test_every_source_is_built(cuda_build: Any) -> None:
    assert cuda_build.KERNELS == KERNELS
    bound = {path.name for path in (cuda_build.CSRC / "cuda").glob("*.cpp")}
    assert bound == {Path(unit).name for unit in cuda_build.TORCH_UNITS if unit.startswith("cuda/")}


def test_a_fake_is_needed_for_every_kernel(cuda_build: Any) -> None:
    text = (cuda_build.CSRC / "cuda" / "binding.cpp").read_text(encoding="utf-8")
    bound = [line.split('"')[1] for line in text.splitlines() if "m.impl" in line]
    declared = re.findall(r'm\.def\(\s*"(\w+)', text)
    assert set(bound) == {*OPS}
    assert set(declared) == set(fakes.CUDA_FAKES)
    assert set(emulated_cuda.SHARED_OPS) <= set(fakes.FAKES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
@pytest.mark.parametrize("source", KERNELS)
def test_kernels_compile_to_machine_code(
    source: str, architecture: str, cuda_build: Any, nvcc: str, tmp_path: Path
) -> None:
    target = tmp_path / "kernels.cubin"
    cuda_build.compile_kernels(
        nvcc, source, str(target), "-cubin", f"-arch={architecture}", *STRICT
    )
    assert target.read_bytes().startswith(b"\x7fELF")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", KERNELS)
def test_kernels_move_vectors_and_keep_to_registers(
    source: str, cuda_build: Any, nvcc: str, tmp_path: Path
) -> None:
    target = tmp_path / "kernels.ptx"
    cuda_build.compile_kernels(nvcc, source, str(target), "-ptx", "-arch=sm_90", *STRICT)
    ptx = target.read_text(encoding="utf-8")
    assert "ld.global.v4" in ptx
    assert "st.global.v" in ptx
    assert ".local" not in ptx
    # `expf` is made of these; what kernels say themselves is never contracted.
    assert source == "silu.cu" or "fma.rn.f32" not in ptx


@pytest.mark.timeout(600)
def test_the_library_links_and_loads_without_a_gpu(
    cuda_build: Any, kernel_build: Any, nvcc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against whatever torch is here, since its ABI is the stable one."""
    monkeypatch.setattr(cuda_build, "ARCHITECTURES", ("90",))
    tools = kernel_build.find_toolchain(os.environ)
    flags = (*kernel_build.FLAGS, *kernel_build.TORCH_FLAGS, f"-I{tools.torch_dir / 'include'}")
    for_cuda = cuda_build.CudaToolchain(nvcc, tools.compiler, flags, tools.torch_dir)
    built = cuda_build.build(for_cuda, tmp_path / cuda_build.LIBRARY)
    assert (built.built, built.reason, built.architectures) == (True, "", ("90",))
    code = (
        "import sys, torch\n"
        "from ir_kernels import library\n"
        "assert library.availability()[0]\n"
        "torch.ops.load_library(sys.argv[1])\n"
        "for op in sys.argv[2:]:\n"
        "    name = f'ir_kernels_c::{op}'\n"
        "    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, 'CUDA'), name\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / cuda_build.LIBRARY), *OPS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_a_torch_without_cuda_is_the_reason(kernel_build: Any, tmp_path: Path) -> None:
    tools = kernel_build.Toolchain(("c++",), "1", tmp_path, "2.13.0+cpu")
    report = kernel_build.build_cuda(tools, tmp_path, {})
    assert (report.built, report.reason) == (False, "torch 2.13.0+cpu is built without CUDA")


@pytest.fixture
def cuda_torch(tmp_path: Path) -> Path:
    """The folder of a torch that was built for CUDA."""
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_cuda.so").touch()
    return tmp_path / "torch"


def test_compilers_words_are_the_reason_and_the_other_library_stays(
    kernel_build: Any, cuda_torch: Path, tmp_path: Path
) -> None:
    (tmp_path / kernel_build.LIBRARY).write_bytes(b"of the CPU")
    nvcc = fake_tool(tmp_path / "nvcc", fails_on="norm.cu")
    tools = kernel_build.Toolchain((fake_tool(tmp_path / "cc"),), "1", cuda_torch, "2.13.0")
    report = kernel_build.build_cuda(tools, tmp_path, {"CUDACXX": nvcc})
    assert not report.built
    assert report.reason.endswith("failed (3): error: no such luck")
    assert not (tmp_path / cuda_library.LIBRARY).exists()
    assert (tmp_path / kernel_build.LIBRARY).exists()


def test_success_says_for_which_gpus(kernel_build: Any, cuda_torch: Path, tmp_path: Path) -> None:
    nvcc = fake_tool(tmp_path / "nvcc")
    tools = kernel_build.Toolchain((fake_tool(tmp_path / "cc"),), "1", cuda_torch, "2.13.0")
    report = kernel_build.build_cuda(tools, tmp_path, {"CUDACXX": nvcc})
    assert (report.built, report.reason, report.compiler) == (True, "", "fake 1.0")
    assert report.architectures == ("80", "90")
    assert (tmp_path / cuda_library.LIBRARY).exists()


def test_torch_for_cuda_is_linked_where_it_is(cuda_build: Any, cuda_torch: Path) -> None:
    tools = cuda_build.CudaToolchain("nvcc", ("c++",), (), cuda_torch)
    assert "-ltorch_cuda" in cuda_build.link_flags(tools)
    (cuda_torch / "lib" / "libtorch_cuda.so").unlink()
    assert "-ltorch_cuda" not in cuda_build.link_flags(tools)


def test_code_is_made_for_each_gpu_and_for_those_to_come(cuda_build: Any) -> None:
    flags = cuda_build.code_for(("80", "100"))
    assert flags[1::2] == [
        "arch=compute_80,code=sm_80",
        "arch=compute_100,code=sm_100",
        "arch=compute_100,code=compute_100",
    ]


def test_nvcc_is_looked_for_where_people_and_wheels_put_it(
    cuda_build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_error = kernel_builds.load("build_commands").BuildError
    monkeypatch.setattr(cuda_build, "DEFAULT_ROOT", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(build_error, match="no nvcc: neither `CUDACXX` nor `CUDA_HOME` names one"):
        cuda_build.find_nvcc({})
    with pytest.raises(build_error, match="`CUDACXX` is `absent`, which does not run"):
        cuda_build.find_nvcc({"CUDACXX": "absent"})

    wheels = tmp_path / "nvidia"
    (wheels / "cu13" / "bin").mkdir(parents=True)
    in_wheel = fake_tool(wheels / "cu13" / "bin" / "nvcc")
    spec = ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(wheels)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert cuda_build.find_nvcc({}) == in_wheel

    (tmp_path / "home" / "bin").mkdir(parents=True)
    at_home = fake_tool(tmp_path / "home" / "bin" / "nvcc")
    assert cuda_build.find_nvcc({"CUDA_HOME": str(tmp_path / "home")}) == at_home


@pytest.mark.parametrize("report", [{}, {"cuda": None}, {"cuda": {"built": True}}])
def test_a_report_that_says_nothing_of_cuda_is_a_reason(report: object, tmp_path: Path) -> None:
    (tmp_path / library.REPORT).write_text(json.dumps(report), encoding="utf-8")
    supported, reason = cuda_library.load(tmp_path)
    assert not supported
    assert "says nothing of it" in reason
    assert "reinstall ir-kernels" in reason


def test_the_reason_of_the_build_reaches_the_provider(tmp_path: Path) -> None:
    facts = {"cuda": {"built": False, "reason": "torch 2.13.0+cpu is built without CUDA"}}
    (tmp_path / library.REPORT).write_text(json.dumps(facts), encoding="utf-8")
    assert cuda_library.load(tmp_path) == (
        False,
        "the CUDA library was not built: torch 2.13.0+cpu is built without CUDA",
    )


def test_a_library_that_is_none_is_explained_in_the_loaders_words(tmp_path: Path) -> None:
    (tmp_path / library.REPORT).write_text('{"cuda": {"built": true, "reason": ""}}')
    (tmp_path / cuda_library.LIBRARY).write_bytes(b"not a library")
    assert cuda_library.load(tmp_path)[1].startswith("the CUDA library does not load: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU")
def test_availability_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "availability", lambda: (True, ""))
    monkeypatch.setattr(cuda_library, "load", lambda _: (True, ""))
    assert cuda_library.availability.__wrapped__() == (False, "needs a CUDA GPU; torch sees none")
    monkeypatch.setattr(library, "availability", lambda: (False, "no compiler"))
    assert cuda_library.availability.__wrapped__() == (False, "no compiler")


def test_the_report_has_a_part_for_cuda_and_both_libraries_go_first(
    kernel_build: Any, tmp_path: Path
) -> None:
    (tmp_path / cuda_library.LIBRARY).write_bytes(b"an older build")
    report = kernel_build.build(
        tmp_path, {"CXX": fake_tool(tmp_path / "cc"), "CUDACXX": str(tmp_path / "absent")}
    )
    assert report.built, report.reason
    assert not report.cuda.built
    assert cuda_library.build_failure(tmp_path) == report.cuda.reason != ""
    assert not (tmp_path / cuda_library.LIBRARY).exists()


def view(dtype: torch.dtype, device: str) -> Any:
    """What a predicate sees of a tensor."""
    return SimpleNamespace(dtype=dtype, device=torch.device(device))


def predicate_calls(op: str, x: Any, other: Any) -> list[str | bool]:
    """The answers of an op's predicate to calls with x, and with what else it takes elsewhere."""
    ask = importlib.import_module(f"ir_kernels.{op}.vllm_c").supports_args
    match op:
        case "rms_norm":
            return [ask(x, other, 1e-5)]
        case "fused_add_rms_norm":
            return [ask(x, other, None, 1e-5), ask(x, x, other, 1e-5)]
        case "quantize_fp8_static":
            return [ask(x, other)]
        case _:
            return []


@pytest.mark.parametrize("op", emulated_cuda.OPS)
def test_a_call_on_a_gpu_is_refused_with_the_reason_of_the_library(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_library, "availability", lambda: (False, "no nvcc"))
    x = view(torch.float32, "cuda:0")
    ask = importlib.import_module(f"ir_kernels.{op}.vllm_c").supports_args
    assert all(answer == "no nvcc" for answer in predicate_calls(op, x, x))
    assert predicate_calls(op, x, x) or ask(x) == "no nvcc"
    monkeypatch.setattr(cuda_library, "availability", lambda: (True, ""))
    assert all(answer is True for answer in predicate_calls(op, x, x))
    assert predicate_calls(op, x, x) or ask(x) is True
    for answer in predicate_calls(op, x, view(torch.float32, "cuda:1")):
        assert str(answer).startswith("needs one device for all; x is on cuda:0, ")


def test_fp8_has_kernels_on_gpus_alone() -> None:
    static = importlib.import_module("ir_kernels.quantize_fp8_static.vllm_c")
    x = view(torch.float32, "cpu")
    assert static.supports_args(x, x) == "runs on cuda, and the activations are on cpu"
    wide = view(torch.float64, "cpu")
    assert static.supports_args(x, wide) == "needs a float32 `scale`, not float64"
