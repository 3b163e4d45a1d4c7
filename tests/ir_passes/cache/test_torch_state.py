"""Every setting of torch that changes numbers or a trace shows in its description."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends import cudnn, mkldnn, nnpack
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ir_passes.cache.dynamo_guards import portable_guards
from ir_passes.cache.torch_state import torch_state
from ir_passes.errors import CannotStoreError
from ir_passes.tracing.model_trace import trace_call

_MATH = "math attention"
_FLASH = "flash attention"
_EFFICIENT = "memory-efficient attention"
_CUDNN = "cuDNN attention"


class Passing(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def _set(place: Any, name: str, value: object) -> Generator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def _hooked(register: Any) -> Generator[None]:
    handle = register(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _dtype() -> Generator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MATMUL = torch.backends.cuda.matmul
SETTINGS: list[tuple[AbstractContextManager[Any], set[str]]] = [
    (sdpa_kernel(SDPBackend.MATH), {_FLASH, _EFFICIENT, _CUDNN, "overrideable attention"}),
    (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        {_MATH, _EFFICIENT, _CUDNN, "overrideable attention"},
    ),
    (_hooked(register_module_forward_hook), {"hooks on every module"}),
    (_hooked(register_module_forward_pre_hook), {"hooks on every module"}),
    (
        _set(torch.utils.deterministic, "fill_uninitialized_memory", False),
        {"filling of uninitialized memory"},
    ),
    (_set(cudnn, "enabled", False), {"cuDNN"}),
    (_set(cudnn, "benchmark", True), {"cuDNN benchmark"}),
    (_set(cudnn, "deterministic", True), {"cuDNN deterministic"}),
    (_set(cudnn, "allow_tf32", False), {"float32 precisions"}),
    (_set(mkldnn, "enabled", False), {"oneDNN"}),
    (_set(mkldnn, "deterministic", True), {"oneDNN deterministic"}),
    (nnpack.flags(False), {"NNPACK"}),
    (_set(MATMUL, "allow_fp16_accumulation", True), {"fp16 accumulation"}),
    (
        _set(MATMUL, "allow_fp16_reduced_precision_reduction", False),
        {"fp16 reduced precision reduction"},
    ),
    (torch.device("meta"), {"default device", "torch function modes"}),
    (_dtype(), {"default dtype"}),
    (torch.autocast("cpu", torch.bfloat16), {"autocast"}),
    (Passing(), {"torch function modes"}),
    (TorchDispatchMode(), {"torch dispatch modes"}),
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_setting_shows(number: int) -> None:
    setting, expected = SETTINGS[number]
    before = torch_state()
    with setting:
        inside = torch_state()
    assert {name for name in inside if inside[name] != before[name]} == expected
    assert torch_state() == before


def test_precision_of_one_backend_shows() -> None:
    backend: Any = mkldnn
    before = torch_state()
    with _set(backend.matmul, "fp32_precision", "bf16"):
        inside = torch_state()
    assert inside["float32 precisions"] != before["float32 precisions"]
    assert torch_state() == before


def test_model_with_hooks_on_every_module_is_not_stored() -> None:
    with _hooked(register_module_forward_hook):
        trace = trace_call(nn.ReLU(), (torch.ones(2, 2),))
        with pytest.raises(CannotStoreError, match="Hooks on every module"):
            portable_guards(trace)
