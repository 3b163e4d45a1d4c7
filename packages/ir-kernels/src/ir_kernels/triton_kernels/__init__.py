"""Triton for provider `triton`: whether it can be used here, and how a kernel is launched.

The kernels lie beside, in modules that import triton; providers import them at the first call, so
that a start which selects none of them pays nothing. On a machine without a GPU, TRITON_INTERPRET=1
runs them in Triton's interpreter, on CPU tensors: a way to test them, not to be fast.
"""

import os
import shutil
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_TRUE = ("1", "true", "yes", "on", "y")
_MIN_CAPABILITY = (8, 0)  # bfloat16 products
# What the interpreter passes for: few enough that work is split between programs now and then.
_INTERPRETED_CORES = 16


@cache
def is_interpreted() -> bool:
    """Whether kernels run in the interpreter: triton decides when they are imported, once."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE


@cache
def availability() -> tuple[bool, str]:
    """Whether triton can run kernels here; else (False, why not). Does not import it."""
    reason = "" if is_interpreted() else _gpu_failure()
    if not reason and find_spec("triton") is None:
        reason = "package `triton` is not installed"
    return not reason, reason


def device_type() -> str:
    """The kind of device whose tensors the kernels take; ROCm's is called `cuda` too."""
    return "cpu" if is_interpreted() else "cuda"


def num_cores(device: torch.device) -> int:
    """How many programs run at once on a device."""
    if device.type != "cuda":
        return _INTERPRETED_CORES
    return torch.cuda.get_device_properties(device).multi_processor_count


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def launch(kernel: Any, grid: tuple[int, ...], x: Tensor, *arguments: Any, **options: Any) -> None:
    """Run `kernel` with (x, *arguments) on x's device, in torch's current stream; not on no grid.

    A product and a sum stay two roundings: what an op says about rounding holds on every compiler.
    """
    if 0 in grid:
        return
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        kernel[grid](x, *arguments, **options, enable_fp_fusion=False)


def _gpu_failure() -> str:
    if not torch.cuda.is_available():
        return "needs a CUDA or ROCm GPU; torch sees none (TRITON_INTERPRET=1 interprets it)"
    if torch.version.hip is None and torch.cuda.get_device_capability() < _MIN_CAPABILITY:
        have = ".".join(map(str, torch.cuda.get_device_capability()))
        return f"needs compute capability 8.0; this GPU has {have}"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "needs a C compiler for its launchers; there is no gcc or clang, and CC is not set"
    return ""
