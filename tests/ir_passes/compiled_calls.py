"""Compiles functions and modules of the default ops for tests, dim 0 of the named arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library import utils
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

import ir_passes
from ir_passes.config import CompilationConfig
from ir_passes.programs.compiled_model import CompiledModel

# Of an example: no other size in these tests, and no branch in them, has it.
TOKENS = 6
IN_PLACE = {name: ["vllm_c"] for name in ("rms_norm", "fused_add_rms_norm", "silu_and_mul")}
NATIVE = {name: ["native"] for name in IN_PLACE}


def compile_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    paths: str = "x",
    limit: int = 16,
    **config: Any,
) -> CompiledModel:
    """Compile, with backend `eager` by default; dim 0 at each of `paths`, words, counts tokens."""
    settings = CompilationConfig.model_validate({"backend": "eager", **config})
    return ir_passes.compile(
        function,
        args,
        dynamic_dims=dict.fromkeys(paths.split(), 0),
        limits={"tokens": limit},
        config=settings,
    )


def rows(num_tokens: int, width: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
    """Different small numbers, the same for every call."""
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randn(num_tokens, width, generator=generator).to(dtype)


class Calls(TorchDispatchMode):
    """Notes the torch ops that run, and refuses outputs that alias arguments undeclared."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, OpOverload):
            self.names.append(func.name())
            return result
        self.names.append(func._schema.name)
        if func.namespace not in ("aten", "prims"):
            utils._c_check_aliasing_constraint(func.name(), args, dict(kwargs or {}), result)
        return result

    def count(self, *names: str) -> int:
        """How often these ops, `aten::clone`, have run."""
        return sum(self.names.count(each) for each in names)
