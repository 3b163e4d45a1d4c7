"""The CUDA kernels and their torch binding, built by a C++ compiler to run on the CPU.

What CUDA gives them is emulated by the headers in `cuda_emulation`. The ops are those of the CUDA
library, for CPU tensors, in torch namespace `ir_kernels_emulated`.
"""

import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ir_core.torch_binding import register_kernel_fake
from ir_kernels import fakes

CSRC = Path(__file__).parents[2] / "packages" / "ir-kernels" / "csrc"
EMULATION = Path(__file__).parent / "cuda_emulation"
KERNELS = tuple(sorted(path.name for path in (CSRC / "cuda").glob("*.cu")))
SHARED_OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "quantize_int8_per_token")
OPS = (*SHARED_OPS, "quantize_fp8_static", "quantize_fp8_per_token")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Werror")
TIMEOUT_S = 500


def compiler() -> str | None:
    """The g++ that builds it; None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(directory: Path) -> Path:
    """Compile the sources of the CUDA library into one that runs on the CPU."""
    library = directory / "ir_kernels_emulated.so"
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda unit: _compile(unit[0], unit[1], directory), _units()))
    link = ("-shared", "-Wl,--no-as-needed", f"-L{_torch() / 'lib'}", "-ltorch_cpu")
    _run(*map(str, objects), *link, "-o", str(library))
    return library


def load(library: Path) -> Any:
    """The torch ops of a library that was built here; once in a process."""
    torch.ops.load_library(library)
    for name in SHARED_OPS:
        register_kernel_fake(f"ir_kernels_emulated::{name}", fakes.FAKES[name])
    for name, fake in fakes.CUDA_FAKES.items():
        register_kernel_fake(f"ir_kernels_emulated::{name}", fake)
    return torch.ops.ir_kernels_emulated


def _units() -> list[tuple[Path, tuple[str, ...]]]:
    kernel_flags = (f"-I{EMULATION}", "-x", "c++", "-DIR_MAX_BLOCKS=2", "-Wno-unknown-pragmas")
    names = ("-DIR_LIBRARY=ir_kernels_emulated", "-DIR_DISPATCH_KEY=CPU")
    target = "-DTORCH_TARGET_VERSION=0x020b000000000000"
    torch_flags = (target, f"-isystem{_torch() / 'include'}", f"-I{CSRC}", *names)
    binding = [CSRC / "cuda" / "binding.cpp", EMULATION / "device_emulated.cpp"]
    shared = [CSRC / "norm_args.cpp", CSRC / "tensor_rows.cpp"]
    kernels = [(CSRC / "cuda" / name, kernel_flags) for name in KERNELS]
    return [*((path, torch_flags) for path in (*binding, *shared)), *kernels]


def _compile(source: Path, flags: tuple[str, ...], directory: Path) -> Path:
    target = directory / f"{source.name}.o"
    _run(*FLAGS, *flags, "-c", str(source), "-o", str(target))
    return target


def _run(*arguments: str) -> None:
    command = [compiler() or "g++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[:3000])


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("torch has no folder")
    return Path(spec.submodule_search_locations[0])
