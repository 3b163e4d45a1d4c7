"""Platforms: which providers a kind of machine prefers by default. Registers no implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

ExecutionMode = Literal["eager", "inductor"]
EXECUTION_MODES: tuple[ExecutionMode, ...] = ("eager", "inductor")

_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
_OVERLAPPED = ("linear_reduce_scatter", "all_gather_linear")
_INT8_ROWS = (
    "quantize_int8_per_token",
    "rms_norm_quantize_int8_per_token",
    "fused_add_rms_norm_quantize_int8_per_token",
    "silu_and_mul_quantize_int8_per_token",
)
_QUANTIZING = ("quantize_fp8_static", "quantize_fp8_per_token", "quantize_int8_per_token")
# What Inductor cannot fuse or must not split: the same lists in eager mode and compiled. What CPU
# lists rest on, and where they lose, stands in docs/benchmarks.md (`make bench-defaults`).
_CPU_PRODUCTS: Mapping[str, Sequence[str]] = {
    # `float32_gemm` runs only where torch has no fast 16-bit GEMM; there it is some times faster.
    "linear": ("vllm_c", "float32_gemm", "native"),
    **dict.fromkeys(
        (
            "linear_w4a16",
            "linear_w8a16",
            "linear_w8a8",
            "embedding",
            "embedding_w8a16",
            "paged_attention",
            "rotary_paged_attention",
            *_INT8_ROWS,
        ),
        ("vllm_c", "native"),
    ),
    "sample_tokens": ("vllm_c", "native"),
    **dict.fromkeys((*_COLLECTIVES, *_OVERLAPPED), ("shm", "gloo", "native")),
    "all_reduce_add_rms_norm": ("shm", "native"),  # others would do it in two steps
}
# The same on a GPU: native attention asks the device for every length, and native `linear_w4a16`
# makes the whole weight anew at each call.
_GPU_PRODUCTS: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("linear_w4a16", "paged_attention"), ("triton", "native")
)
_KERNEL_OPS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "rotary_embedding",
    "qk_norm_rope",
)


class Platform:
    """A kind of machine; subclass it to give one of your own its default priorities.

    Override `default_priority(mode)`, or `get_default_ir_op_priority()` where the mode does not
    matter. Lists may name providers that are not installed; those drop out. `native` comes last
    by itself. A plug-in hands an instance out through the entry-point group `ir_core.platforms`.
    """

    name: str = "unnamed"

    def default_priority(self, mode: ExecutionMode) -> Mapping[str, Sequence[str]]:
        """Provider lists by op, for eager execution or for compilation with Inductor."""
        return self.get_default_ir_op_priority()

    def get_default_ir_op_priority(self) -> Mapping[str, Sequence[str]]:
        """Provider lists by op for every mode; none by default."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class BuiltinPlatform(Platform):
    """A platform known here: `eager` lists apply in eager mode, `inductor` ones when compiled.

    With Inductor most platforms prefer native, which it fuses with its neighbours. On a GPU that is
    so for every op that it can fuse: the vendors' libraries, then `triton`, are for eager mode,
    where native is a launch for each of its steps. What is faster compiled was not measured.
    """

    def __init__(
        self,
        name: str,
        eager: Mapping[str, Sequence[str]],
        inductor: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self._lists: dict[ExecutionMode, Mapping[str, Sequence[str]]] = {
            "eager": eager,
            "inductor": inductor or _norms_and_activations("native"),
        }

    def default_priority(self, mode: ExecutionMode) -> Mapping[str, Sequence[str]]:
        """Provider lists by op."""
        return self._lists[mode]


def builtin_platform() -> Platform:
    """The platform of this machine among those known here: rocm, cuda, xpu or cpu."""
    if torch.cuda.is_available():
        if torch.version.hip:
            return _gpu("rocm", _norms_and_activations("aiter", "vllm_c", "triton", "native"))
        quantizing = dict.fromkeys(_QUANTIZING, ("vllm_c", "native"))
        norms = _norms_and_activations("vllm_c", "triton", "native")
        return _gpu("cuda", {**norms, **quantizing})
    if torch.xpu.is_available():
        return BuiltinPlatform("xpu", _norms_and_activations("xpu_kernels", "native"))
    cpu = {**_norms_and_activations("vllm_c", "native"), **_CPU_PRODUCTS}
    # The same when compiled: the C++ kernels are no slower than Inductor's loops, need no compiler
    # at start, and give the numbers of eager mode.
    return BuiltinPlatform("cpu", cpu, cpu)


def _gpu(name: str, eager: Mapping[str, Sequence[str]]) -> Platform:
    collectives = {
        **dict.fromkeys(_COLLECTIVES, ("nccl", "native")),
        **dict.fromkeys(_OVERLAPPED, ("symm_mem", "native")),
    }
    both = {**_GPU_PRODUCTS, **collectives}
    eager = {**eager, "gelu_and_mul": ("triton", "native"), **both}
    return BuiltinPlatform(name, eager, {**_norms_and_activations("native"), **both})


def _norms_and_activations(*providers: str) -> Mapping[str, Sequence[str]]:
    return dict.fromkeys(_KERNEL_OPS, providers)
