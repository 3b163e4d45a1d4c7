"""Builds the library that runs provider `vllm_c` on CUDA devices; never imports torch.

The kernels (csrc/cuda/*.cu) need nvcc alone. The torch binding beside them is C++ on torch's stable
ABI, so that it compiles and links against any torch; `build` wants one with CUDA all the same,
since nothing else has tensors for it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from build_commands import BuildError, run_command

LIBRARY = "ir_kernels_cuda.so"
CSRC = Path(__file__).resolve().parent / "csrc"
KERNELS = ("cache_write.cu", "norm.cu", "quantize.cu", "silu.cu")
TORCH_UNITS = ("cuda/binding.cpp", "cuda/device_cuda.cpp", "norm_args.cpp", "tensor_rows.cpp")

# No contraction to FMA, as in the library of the CPU; quotients and roots are exact by default.
NVCC_FLAGS = ("-std=c++20", "-O3", "-fmad=false")
HOST_FLAGS = ("-Xcompiler", "-fPIC,-fvisibility=hidden")
# Of these, those that nvcc knows are built; the last one also as PTX, for GPUs to come.
ARCHITECTURES = ("80", "90", "100", "120")
DEFAULT_ROOT = Path("/usr/local/cuda")


@dataclass(frozen=True, slots=True)
class CudaReport:
    """What a build for CUDA did: `reason` is empty if and only if `built`."""

    built: bool
    reason: str
    compiler: str = ""
    flags: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaToolchain:
    """nvcc, the host's compiler with the flags of its units, and the torch to link."""

    nvcc: str
    host: tuple[str, ...]
    torch_flags: tuple[str, ...]
    torch_dir: Path


def build(tools: CudaToolchain, library: Path) -> CudaReport:
    """Compile all sources and link them to `library`; BuildError says what did not work."""
    architectures = known_architectures(tools.nvcc)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)

        def compile_unit(source: str) -> str:
            target = str(directory / f"{Path(source).name}.o")
            if source in KERNELS:
                compile_kernels(tools.nvcc, source, target, *HOST_FLAGS, *code_for(architectures))
            else:
                command = [*tools.host, *tools.torch_flags, "-c", str(CSRC / source)]
                run_command([*command, "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, (*KERNELS, *TORCH_UNITS)))
        linked = str(directory / LIBRARY)
        run_command([tools.nvcc, "-shared", *objects, "-o", linked, *link_flags(tools)])
        shutil.move(linked, library)
    version = run_command([tools.nvcc, "--version"]).strip().splitlines()[-1]
    return CudaReport(True, "", version, NVCC_FLAGS, architectures)


def find_nvcc(environ: Mapping[str, str]) -> str:
    """The nvcc that `CUDACXX` or `CUDA_HOME` names, else of PATH, the system, or NVIDIA's wheels.

    Raises:
        BuildError: there is none.
    """
    if wanted := environ.get("CUDACXX", ""):
        if shutil.which(wanted) is None:
            raise BuildError(f"no nvcc: `CUDACXX` is `{wanted}`, which does not run")
        return wanted
    roots = [DEFAULT_ROOT, *_wheel_roots()]
    if home := environ.get("CUDA_HOME", ""):
        roots.insert(0, Path(home))
    candidates = [str(root / "bin" / "nvcc") for root in roots]
    candidates.insert(1 if home else 0, "nvcc")
    found = next((each for each in map(shutil.which, candidates) if each), None)
    if found is None:
        raise BuildError(
            "no nvcc: neither `CUDACXX` nor `CUDA_HOME` names one, nor is it on PATH or in "
            f"{DEFAULT_ROOT}; install a CUDA toolkit and reinstall ir-kernels"
        )
    return found


def check_torch(torch_dir: Path, version: str) -> None:
    """Raise BuildError unless this torch has tensors on CUDA devices."""
    if not (torch_dir / "lib" / "libtorch_cuda.so").exists():
        raise BuildError(f"torch {version} is built without CUDA")


def compile_kernels(nvcc: str, source: str, target: str, *flags: str) -> None:
    """Compile one of `KERNELS` with more flags, which say for what."""
    run_command([nvcc, *NVCC_FLAGS, *flags, "-c", str(CSRC / "cuda" / source), "-o", target])


def known_architectures(nvcc: str) -> tuple[str, ...]:
    """Those of `ARCHITECTURES` that this nvcc can make code for."""
    known = run_command([nvcc, "--list-gpu-code"]).split()
    found = tuple(each for each in ARCHITECTURES if f"sm_{each}" in known)
    if not found:
        raise BuildError(f"`{nvcc}` makes code for none of sm_{', sm_'.join(ARCHITECTURES)}")
    return found


def code_for(architectures: Sequence[str]) -> list[str]:
    """nvcc's flags for machine code of each, and for PTX of the last."""
    last = architectures[-1]
    pairs = [f"arch=compute_{each},code=sm_{each}" for each in architectures]
    return [
        part
        for pair in (*pairs, f"arch=compute_{last},code=compute_{last}")
        for part in ("-gencode", pair)
    ]


def link_flags(tools: CudaToolchain) -> list[str]:
    """For torch's libraries, as far as they are there, and CUDA's runtime, which is linked in."""
    directory = tools.torch_dir / "lib"
    has_cuda = (directory / "libtorch_cuda.so").exists()
    libraries = ["-ltorch_cpu", *(["-ltorch_cuda"] if has_cuda else [])]
    runtime = Path(tools.nvcc).resolve().parent.parent / "lib"  # where wheels have it
    return [
        f"-L{directory}",
        *([f"-L{runtime}"] if (runtime / "libcudart_static.a").exists() else []),
        "-Xlinker",
        "--no-as-needed",
        *libraries,
        "-cudart",
        "static",
    ]


def _wheel_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return [root for place in places for root in sorted(Path(place).glob("cu*"), reverse=True)]
