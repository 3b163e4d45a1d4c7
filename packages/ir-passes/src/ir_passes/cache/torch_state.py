"""The settings of torch that a trace or a compiled program takes for granted, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ir_passes.cache.constants import Description, describe_constant

_DEVICES = ("cpu", "cuda", "xpu")
_PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)
_HOOKS = tuple(
    f"_global_{kind}_hooks" for kind in ("forward_pre", "forward", "backward_pre", "backward")
)


def torch_state() -> Mapping[str, Description]:
    """The present settings, described.

    Grad mode is left out since whoever calls a compiled program turns it off, and so is the number
    of threads, on which no program depends. That denormals are flushed cannot be read.
    """
    state = {**_general(), **_kernels(), **_precision()}
    return {name: describe_constant(value) for name, value in state.items()}


def num_global_hooks() -> int:
    """How many hooks there are on every module, which nothing tells one from another."""
    return sum(len(getattr(modules, name)) for name in _HOOKS)


def _general() -> dict[str, Any]:
    functions = torch.overrides._get_current_function_mode_stack()
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "autocast": tuple(
            torch.get_autocast_dtype(each) if torch.is_autocast_enabled(each) else None
            for each in _DEVICES
        ),
        "torch function": torch._C._is_torch_function_enabled(),
        "torch function modes": tuple(type(each).__qualname__ for each in functions),
        "torch dispatch modes": tuple(
            type(each).__qualname__ for each in _get_current_dispatch_mode_stack()
        ),
        "forward gradient level": torch.autograd.forward_ad._current_level,
        "hooks on every module": num_global_hooks(),
        "attention fast path": torch.backends.mha.get_fastpath_enabled(),
        "einsum path": (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
    }


def _kernels() -> dict[str, Any]:
    cuda = torch.backends.cuda
    return {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic algorithms only warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filling of uninitialized memory": torch._C._get_deterministic_fill_uninitialized_memory(),
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "math attention": cuda.math_sdp_enabled(),
        "cuDNN attention": cuda.cudnn_sdp_enabled(),
        "overrideable attention": torch._C._get_overrideable_sdp_enabled(),
        "order of attention backends": tuple(torch._C._get_sdp_priority_order()),
        "BLAS library": str(torch._C._get_blas_preferred_backend()),
        "linear algebra library": str(torch._C._get_linalg_preferred_backend()),
        "cuDNN": torch._C._get_cudnn_enabled(),
        "cuDNN benchmark": torch._C._get_cudnn_benchmark(),
        "cuDNN deterministic": torch._C._get_cudnn_deterministic(),
        "cuDNN depthwise kernel": torch._C._get_cudnn_depthwise_kernel(),
        "MIOpen immediate": torch._C._get_miopen_immediate(),
        "oneDNN": torch._C._get_mkldnn_enabled(),
        "oneDNN deterministic": torch._C._get_mkldnn_deterministic(),
        "NNPACK": torch._C._get_nnpack_enabled(),
        "quantized engine": torch._C._get_qengine(),
    }


def _precision() -> dict[str, Any]:
    return {
        "float32 matmul precision": _matmul_precision(),
        "float32 precisions": tuple(
            torch._C._get_fp32_precision_getter(*each) for each in _PRECISIONS
        ),
        "fp16 reduced precision reduction": (
            torch._C._get_cublas_allow_fp16_reduced_precision_reduction()
        ),
        "bf16 reduced precision reduction": (
            torch._C._get_cublas_allow_bf16_reduced_precision_reduction()
        ),
        "fp16 accumulation": torch._C._get_cublas_allow_fp16_accumulation(),
        "attention in half precision": torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
    }


def _matmul_precision() -> str | None:
    """None where precisions were set per backend, of which this one setting knows nothing."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
