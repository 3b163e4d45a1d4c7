"""Builds the compiled library of the `vllm_c` provider; never raises, and never imports torch.

`build` compiles csrc against the torch of the running interpreter and leaves two files in the
package: the library, and `build_report.json`, which says what was built or why nothing was. Run as
a script, it rebuilds the library of an editable install.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import cuda_build
from build_commands import BuildError, run_command
from cuda_build import CudaReport, CudaToolchain

LIBRARY = "ir_kernels_c.so"
REPORT = "build_report.json"
CSRC = Path(__file__).resolve().parent / "csrc"

# No -ffast-math: NaN, infinities and denormals mean what they mean in torch. No contraction to FMA:
# elementwise kernels give the same bits on every ISA. What promises no bits asks for FMA by name.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=off",
)
# The oldest torch whose stable ABI the library asks for: 2.11.
TORCH_FLAGS = ("-DTORCH_TARGET_VERSION=0x020b000000000000",)
# torch is loaded RTLD_LOCAL, so its library must be named even though no symbol needs it at link.
LINK_FLAGS = ("-shared", "-Wl,--no-as-needed", "-ltorch_cpu")
TORCH_UNITS = (
    "binding.cpp",
    "binding_attention.cpp",
    "binding_int8.cpp",
    "binding_int8_rows.cpp",
    "binding_linear.cpp",
    "binding_quantized.cpp",
    "binding_rotary.cpp",
    "binding_rotary_attention.cpp",
    "binding_sampling.cpp",
    "device_cpu.cpp",
    "norm_args.cpp",
    "shm_all_reduce_norm.cpp",
    "shm_channel.cpp",
    "shm_collectives.cpp",
    "tape.cpp",
    "team.cpp",
    "tensor_rows.cpp",
)
# Sums have no version of their own where an ISA adds nothing to them.
SUMMING_ISAS = ("portable", "avx2", "avx512")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512_BF16 = (*AVX512, "-mavx512bf16", "-mavx512vnni")
AMX = (*AVX512_BF16, "-mamx-tile", "-mamx-bf16")

NO_CUDA = CudaReport(False, "it was not tried; it needs the library of the CPU")


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did: `reason` is empty if and only if `built`; `cuda` is another library."""

    built: bool
    reason: str
    compiler: str
    flags: tuple[str, ...]
    isas: tuple[str, ...]
    torch: str
    cuda: CudaReport


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler and the torch to compile against."""

    compiler: tuple[str, ...]
    version: str
    torch_dir: Path
    torch_version: str


def build(package: Path, environ: Mapping[str, str]) -> BuildReport:
    """Build into `package` with the compiler that `CXX` names, or g++, c++, clang++.

    Whatever happens, the old libraries are gone afterwards and the report is written.
    """
    package.mkdir(parents=True, exist_ok=True)
    for each in (LIBRARY, cuda_build.LIBRARY):
        (package / each).unlink(missing_ok=True)
    try:
        tools = find_toolchain(environ)
        report = compile_library(tools, package / LIBRARY)
        report = replace(report, cuda=build_cuda(tools, package, environ))
    except Exception as error:
        report = BuildReport(False, words_of(error), "", (), (), "", NO_CUDA)
    (package / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


def build_cuda(tools: Toolchain, package: Path, environ: Mapping[str, str]) -> CudaReport:
    """Build the library for CUDA devices too, where there are a torch and an nvcc for it."""
    flags = (*FLAGS, *TORCH_FLAGS, f"-I{tools.torch_dir / 'include'}")
    try:
        cuda_build.check_torch(tools.torch_dir, tools.torch_version)
        nvcc = cuda_build.find_nvcc(environ)
        cuda_tools = CudaToolchain(nvcc, tools.compiler, flags, tools.torch_dir)
        return cuda_build.build(cuda_tools, package / cuda_build.LIBRARY)
    except Exception as error:
        return CudaReport(False, words_of(error))


def words_of(error: Exception) -> str:
    """Why a build failed: the message alone where it says what to do."""
    return str(error) if isinstance(error, BuildError) else f"{type(error).__name__}: {error}"


def find_toolchain(environ: Mapping[str, str]) -> Toolchain:
    """Locate compiler and torch; BuildError says which is missing and what to do."""
    wanted = environ.get("CXX", "")
    candidates = [wanted] if wanted else ["g++", "c++", "clang++"]
    found = next((each for each in candidates if shutil.which(shlex.split(each)[0])), None)
    if found is None:
        where = f"`CXX` is `{wanted}`, which does not run" if wanted else "no g++, c++ or clang++"
        raise BuildError(f"no C++ compiler: {where}; install one and reinstall ir-kernels")
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(
            "torch was not there at build time: install it first, then ir-kernels with "
            "`--no-build-isolation`"
        )
    compiler = tuple(shlex.split(found))
    version = run_command([*compiler, "--version"]).splitlines()[0]
    torch_dir = Path(spec.submodule_search_locations[0])
    return Toolchain(compiler, version, torch_dir, importlib.metadata.version("torch"))


def compile_library(tools: Toolchain, library: Path) -> BuildReport:
    """Compile all sources in parallel and link them to `library`."""
    isas = {isa: flags for isa, flags in isa_flags().items() if knows_flags(tools, flags)}
    torch_flags = (*TORCH_FLAGS, f"-I{tools.torch_dir / 'include'}")
    units: dict[str, Sequence[str]] = {f"isa_{isa}.cpp": flags for isa, flags in isas.items()}
    units |= dict.fromkeys(TORCH_UNITS, torch_flags)
    units |= {f"shm_sum_{isa}.cpp": isas[isa] for isa in SUMMING_ISAS if isa in isas}
    units |= dict.fromkeys(("attention_plan.cpp", "shm_segment.cpp"), ())
    built = tuple(f"-DIR_BUILT_{isa}" for isa in isas)
    units |= dict.fromkeys(("isa_select.cpp", "shm_sum.cpp"), built)

    with tempfile.TemporaryDirectory() as scratch:

        def compile_unit(source: str) -> str:
            target = str(Path(scratch) / f"{source}.o")
            command = [*tools.compiler, *FLAGS, *units[source], "-c", str(CSRC / source)]
            run_command([*command, "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, units))
        linked = str(Path(scratch) / LIBRARY)
        search = f"-L{tools.torch_dir / 'lib'}"
        run_command([*tools.compiler, *objects, "-o", linked, search, *LINK_FLAGS])
        shutil.move(linked, library)
    return BuildReport(True, "", tools.version, FLAGS, tuple(isas), tools.torch_version, NO_CUDA)


def isa_flags() -> dict[str, tuple[str, ...]]:
    """The ISAs to build for this architecture and the flags of each."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return {"portable": ()}
    return {
        "portable": (),
        "avx2": AVX2,
        "avx512": AVX512,
        "avx512_bf16": AVX512_BF16,
        "amx": AMX,
    }


def knows_flags(tools: Toolchain, flags: Sequence[str]) -> bool:
    """Whether the compiler is new enough for an ISA; without flags it need not be asked."""
    if not flags:
        return True
    command = [*tools.compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        run_command(command)
    except BuildError:
        return False
    return True


def main(argv: Sequence[str]) -> int:
    """Rebuild into the directory given, else into the source tree; 1 if nothing was built."""
    default = Path(__file__).resolve().parent / "src" / "ir_kernels"
    report = build(Path(argv[0]) if argv else default, os.environ)
    print(json.dumps(asdict(report), indent=2))
    return 0 if report.built else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
