"""The ops of vllm-xpu-kernels: whether they can be used, and where they are."""

from functools import cache
from typing import Any

import torch

from ir_kernels import machine

kernels: Any = torch.ops._C
"""The library's torch ops; their names resolve once `availability` has imported it."""


@cache
def availability() -> tuple[bool, str]:
    """Import the package, which loads its ops; (False, what is wrong) if that cannot be done."""
    supported, reason = machine.xpu_package("vllm_xpu_kernels")
    if not supported:
        return False, reason
    try:
        import vllm_xpu_kernels._C  # noqa: F401, PLC0415  # pyright: ignore
    except (ImportError, OSError) as error:
        return False, f"package `vllm_xpu_kernels` does not load: {error}"
    return True, ""
