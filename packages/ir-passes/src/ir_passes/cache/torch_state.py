"""The settings of torch that a trace takes for granted, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ir_passes.cache.constants import Description, describe_constant


def torch_state() -> Mapping[str, Description]:
    """The present settings, described.

    Grad mode is left out since whoever calls a compiled program turns it off, and so is the number
    of threads, on which no program depends.
    """
    matmul = torch.backends.cuda.matmul
    devices = ("cpu", "cuda", "xpu")
    state = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic algorithms only warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "fp16 reduced precision reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduced precision reduction": matmul.allow_bf16_reduced_precision_reduction,
        "autocast": tuple(
            torch.get_autocast_dtype(each) if torch.is_autocast_enabled(each) else None
            for each in devices
        ),
        "torch function": torch._C._is_torch_function_enabled(),
        "torch function modes": tuple(
            type(each).__qualname__ for each in torch.overrides._get_current_function_mode_stack()
        ),
        "forward gradient level": torch.autograd.forward_ad._current_level,
    }
    return {name: describe_constant(value) for name, value in state.items()}
