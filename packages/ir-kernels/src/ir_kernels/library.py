"""The compiled library of provider `vllm_c`: whether it is there, and which ISA it runs.

Owns loading it, once, into torch namespace `ir_kernels_c`. Builds nothing: see `kernel_build.py`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ir_core.torch_binding import register_kernel_fake
from ir_kernels import fakes

PACKAGE = Path(__file__).parent
LIBRARY = "ir_kernels_c.so"
REPORT = "build_report.json"

kernels: Any = torch.ops.ir_kernels_c
"""The torch ops of the library; their names resolve once `availability` has loaded it."""


@cache
def availability() -> tuple[bool, str]:
    """Load the library; (False, what is wrong) if it was not built or does not load."""
    return load(PACKAGE)


def load(package: Path) -> tuple[bool, str]:
    """Load the library that was built into `package`, and register the fakes of its ops."""
    reason = build_failure(package)
    if reason:
        return False, f"the C++ library was not built: {reason}"
    try:
        torch.ops.load_library(package / LIBRARY)
    except OSError as error:
        return False, f"the C++ library does not load: {error.__cause__ or error}"
    for name, fake in fakes.FAKES.items():
        register_kernel_fake(f"ir_kernels_c::{name}", fake)
    return True, ""


def build_failure(package: Path) -> str:
    """Why the build left no library in `package`; "" if it left one."""
    report = package / REPORT
    try:
        facts = json.loads(report.read_text(encoding="utf-8"))
        built, reason = bool(facts["built"]), str(facts["reason"])
    except FileNotFoundError:
        return f"{report} is missing; reinstall ir-kernels with `--no-build-isolation`"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{report} cannot be read ({error}); reinstall ir-kernels"
    return "" if built else reason


def isa() -> str:
    """The instruction set whose kernels run: one of `isas`."""
    return kernels.isa.default()


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine can run, best first.

    Of `amx`, `avx512_bf16`, `avx512`, `avx2` and `portable`, those that the compiler knew, the CPU
    has and the system allows. The last is always there.
    """
    return tuple(kernels.isas.default().split(","))


def set_isa(name: str) -> None:
    """Run another instruction set's kernels, process-wide.

    Elementwise kernels give the same bits on every one. Matrix products, attention and what is
    built on them do not: they sum in another order, and bfloat16 dot products (`avx512_bf16`,
    `amx`) take subnormal numbers for zero.

    Raises:
        RuntimeError: this machine cannot run it.
    """
    kernels.set_isa.default(name)
