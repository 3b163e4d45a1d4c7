"""What this machine has that a vendor's kernels need, and the words for what it lacks."""

from importlib.util import find_spec

import torch


def rocm_package(name: str) -> tuple[bool, str]:
    """Whether a Python package that needs a ROCm GPU can be used; else (False, why not)."""
    if torch.version.hip is None:
        return False, "needs a ROCm GPU; this torch is built without HIP"
    if not torch.cuda.is_available():
        return False, "needs a ROCm GPU; torch sees none"
    return _package(name)


def cuda_package(name: str) -> tuple[bool, str]:
    """Whether a Python package that needs an NVIDIA GPU can be used; else (False, why not)."""
    if torch.version.cuda is None:
        return False, "needs a CUDA GPU; this torch is built without CUDA"
    if not torch.cuda.is_available():
        return False, "needs a CUDA GPU; torch sees none"
    return _package(name)


def xpu_package(name: str) -> tuple[bool, str]:
    """Whether a Python package that needs an Intel GPU can be used; else (False, why not)."""
    if not torch.xpu.is_available():
        return False, "needs an Intel GPU; torch sees none (`torch.xpu.is_available()` is false)"
    return _package(name)


def _package(name: str) -> tuple[bool, str]:
    if find_spec(name) is None:
        return False, f"package `{name}` is not installed"
    return True, ""
