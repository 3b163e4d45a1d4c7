"""The Triton launches that provider functions make, recorded on tensors without memory, and built.

A recorded launch is compiled ahead of time for a GPU that need not be there, from the types and
constants that the launch would have had. What reads a tensor's values on the host cannot be
recorded, so a record also says that nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import ir_core as ir
from ir_kernels import triton_kernels

OPS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_and_mul",
    "rotary_embedding",
    "qk_norm_rope",
    "linear_w4a16",
    "paged_attention",
)
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with what it was given: positional arguments, then constants and options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.fn.__name__

    @property
    def variant(self) -> str:
        """What triton compiles a kernel anew for: types, constants, and facts about integers."""
        facts = [
            not parameter.do_not_specialize and isinstance(each, int) and each % 16 == 0
            for parameter, each in zip(self.kernel.params, self.arguments, strict=False)
        ]
        return repr((self.name, self._types(), facts, sorted(self.options.items())))

    def compile(self, target: str) -> Any:
        """Compile it for one of `TARGETS`, as a launch there would."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        architecture = re.sub(r"^sm_", "", target)
        where = (
            GPUTarget("cuda", int(architecture), 32)
            if architecture.isdigit()
            else GPUTarget("hip", architecture, 64)
        )
        names = self.kernel.arg_names
        constants = {name: each for name, each in self.options.items() if name in names}
        options = {name: each for name, each in self.options.items() if name not in names}
        types = self._types()
        for name, each in zip(names, self.arguments, strict=False):
            if types[name] == "constexpr":
                constants[name] = each
        types |= dict.fromkeys(constants, "constexpr")
        aligned = {
            (at,): [["tt.divisibility", 16]]
            for at, name in enumerate(names)
            if types[name].startswith("*")
        }
        source = ASTSource(self.kernel, {name: types[name] for name in names}, constants, aligned)
        return triton.compile(source, target=where, options=options)

    def _types(self) -> dict[str, str]:
        """Triton's type of each argument, "constexpr" for None and for a 1 that it specialises."""
        return {
            parameter.name: _type(each, is_specialised=not parameter.do_not_specialize)
            for parameter, each in zip(self.kernel.params, self.arguments, strict=False)
        }


def record(op: ir.IrOp, **inputs: Any) -> list[Launch]:
    """The launches of provider `triton` for the inputs of the op's generator."""
    plain = op.schema.bind(op.name, op.generate_inputs(**inputs), {})
    arguments = [each.to("meta") if isinstance(each, Tensor) else each for each in plain]
    with _recorded() as launches:
        op.implementations["triton"].fn(*arguments)
    return launches


@contextmanager
def _recorded() -> Generator[list[Launch]]:
    launches: list[Launch] = []

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if 0 not in grid:
            options["enable_fp_fusion"] = False
            launches.append(Launch(kernel, grid, arguments, options))

    with mock.patch.object(triton_kernels, "launch", launch):
        yield launches


def _type(argument: Any, *, is_specialised: bool) -> str:
    match argument:
        case Tensor():
            return _POINTERS[argument.dtype]
        case float():
            return "fp32"
        case None:
            return "constexpr"
        case 1 if is_specialised:
            return "constexpr"
        case _:
            return "i32"
