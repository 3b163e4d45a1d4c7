"""The library that runs provider `vllm_c` on CUDA devices: whether it can be used, and for what.

Its ops are those of `library` and a few of its own, in the same namespace: torch calls the library
that knows the tensors' device. Builds nothing: see `cuda_build.py`.
"""

import json
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ir_core.torch_binding import register_kernel_fake
from ir_kernels import arguments, fakes, library

LIBRARY = "ir_kernels_cuda.so"


@cache
def availability() -> tuple[bool, str]:
    """Load both libraries; (False, what is wrong) if one was not built, or there is no GPU."""
    supported, reason = library.availability()
    if supported:
        supported, reason = load(library.PACKAGE)
    if supported and not torch.cuda.is_available():
        return False, "needs a CUDA GPU; torch sees none"
    return supported, reason


def load(package: Path) -> tuple[bool, str]:
    """Load the library that was built into `package`, and register the fakes of its own ops.

    The library of the CPU, which declares the ops that both have, must have been loaded.
    """
    reason = build_failure(package)
    if reason:
        return False, f"the CUDA library was not built: {reason}"
    try:
        torch.ops.load_library(package / LIBRARY)
    except OSError as error:
        return False, f"the CUDA library does not load: {error.__cause__ or error}"
    for name, fake in fakes.CUDA_FAKES.items():
        register_kernel_fake(f"ir_kernels_c::{name}", fake)
    return True, ""


def build_failure(package: Path) -> str:
    """Why the build left no CUDA library in `package`; "" if it left one."""
    report = package / library.REPORT
    try:
        facts = json.loads(report.read_text(encoding="utf-8"))["cuda"]
        built, reason = bool(facts["built"]), str(facts["reason"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{report} says nothing of it ({error!r}); reinstall ir-kernels"
    return "" if built else reason


def activation(x: Tensor, **others: Tensor | None) -> str:
    """What kernels that exist for the CPU and for CUDA take, as `arguments.activation`.

    On a GPU, `others` must be on x's device too.
    """
    if x.device.type != "cuda":
        return arguments.activation(x, "cpu")
    return on_gpu(x, **others)


def on_gpu(x: Tensor, **others: Tensor | None) -> str:
    """What kernels that exist for CUDA alone take."""
    refused = arguments.activation(x, "cuda") or arguments.one_device(x, **others)
    if refused:
        return refused
    supported, reason = availability()
    return "" if supported else reason
