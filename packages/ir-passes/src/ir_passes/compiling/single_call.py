"""One call of an op, compiled as a piece of a model is, so that it can be timed beside others.

It knows no model: what would be fused with the op there is not in its code.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ir_core import TuningTimeError
from ir_core.autotuning.call_compiler import CompiledCall, tensors_of
from ir_passes.config import CacheMode, CompilationConfig
from ir_passes.errors import CompileError
from ir_passes.programs.request import CompileRequest
from ir_passes.tracing.dynamic_dims import TOKENS

if TYPE_CHECKING:
    from ir_core import Implementation, IrOp

_Values = Sequence[Any]
_ARGUMENT = "tensors"
# What a start may spend on it: as long as a small model takes to be compiled.
_LIMIT_S = 120.0


class SingleCalls:
    """Compiles calls one by one with a configuration's backend, options and kind of shapes.

    Implements `ir_core.autotuning.call_compiler.CallCompiler`. Nothing of it is cached but what the
    backend caches: what is kept is the choice that its times lead to.
    """

    def __init__(self, config: CompilationConfig, limit_s: float = _LIMIT_S) -> None:
        """`limit_s` bounds what all compilations take: after it none begins."""
        self._config = CompilationConfig(
            backend=config.backend,
            inductor_compile_config=config.inductor_compile_config,
            dynamic_shapes_config=config.dynamic_shapes_config,
            cache_mode=CacheMode.OFF,
        )
        self._limit_s = limit_s
        self._seconds = 0.0

    @property
    def description(self) -> str:
        """The backend, and a digest of all that decides what its code is like."""
        # It costs a start time that only what is tuned needs.
        from ir_passes.cache.cpp_compiler import compiler_digest  # noqa: PLC0415
        from ir_passes.cache.factors import compiler_factors  # noqa: PLC0415

        facts = {**compiler_factors(self._config), "C++ compiler": compiler_digest()}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{self._config.backend} {digest[:16]}"

    def compile(
        self, implementation: Implementation, calls: Mapping[int, _Values]
    ) -> Mapping[int, CompiledCall]:
        """Compile one program for all numbers of tokens of `calls`.

        Raises:
            TuningTimeError: the time is up.
            CompileError: the op has a number of tokens among its arguments.
            TraceError, LoweringError, BackendError: it cannot be compiled.
        """
        if self._seconds >= self._limit_s:
            raise TuningTimeError(
                f"Compiling single calls has taken {self._seconds:.0f} s, and {self._limit_s:g} s "
                "are the most that timing may cost; the next start with `autotune` on goes on."
            )
        started = time.monotonic()
        try:
            return self._compile(implementation, calls)
        finally:
            self._seconds += time.monotonic() - started

    def _compile(
        self, implementation: Implementation, calls: Mapping[int, _Values]
    ) -> Mapping[int, CompiledCall]:
        # They cost a second, and only what is compiled needs them.
        from ir_passes.compiling.session import Session  # noqa: PLC0415
        from ir_passes.programs.compiled_model import CompiledModel  # noqa: PLC0415

        op = implementation.op
        request = _request(op, calls, self._config)
        with op.registry.priorities.override({op.name: [implementation.provider]}):
            model = CompiledModel(Session(request).run().parts)
        # Choices by rows that are in force cut programs for other calls, and so for this one.
        if {*model.selected_impls.get(op.name, {})} != {implementation.provider}:
            raise CompileError(
                f"`{op.name}` by `{implementation.provider}` was to be compiled, and this was: "
                f"{dict(model.selected_impls)}."
            )
        return {count: model.program_for(count) for count in calls}


def _request(op: IrOp, calls: Mapping[int, _Values], config: CompilationConfig) -> CompileRequest:
    largest = max(calls)
    values = calls[largest]
    examples = [_example(each) for each in tensors_of(values)]
    dims, limits = _dims(op, calls), {TOKENS: largest}
    for path, labels in dims.items():
        tensor = examples[int(path.rpartition(".")[2])]
        limits |= {label: tensor.shape[dim] for dim, label in labels.items()}
    return CompileRequest(_function(op, values), (examples,), {}, dims, limits, config)


def _function(op: IrOp, values: _Values) -> Any:
    """A function of the tensors of a call, which all its other values are constants of."""
    is_given = [isinstance(each, Tensor) for each in values]
    constants = [None if given else each for given, each in zip(is_given, values, strict=True)]
    run = op.maybe_inplace if op.allow_inplace else op

    def call(tensors: list[Tensor]) -> Any:
        arguments: list[Any] = []
        position = 0
        for given, constant in zip(is_given, constants, strict=True):
            arguments.append(tensors[position] if given else constant)
            position += given
        return run(*arguments)

    return call


def _dims(op: IrOp, calls: Mapping[int, _Values]) -> dict[str, Mapping[int, str]]:
    """The dims that vary, by the tensor's place in the list; those with one number share a label.

    Raises CompileError for a number that varies and is no size of a tensor.
    """
    found: dict[str, Mapping[int, str]] = {}
    position = 0
    for index, name in enumerate(op.schema.names):
        column = {count: values[index] for count, values in calls.items()}
        first = next(iter(column.values()))
        if not isinstance(first, Tensor):
            if any(each != first for each in column.values()):
                raise CompileError(f"`{op.name}` takes `{name}`, a number of tokens.")
            continue
        sizes = {
            dim: {count: each.shape[dim] for count, each in column.items()}
            for dim in op.token_dims.get(name, ())
        }
        labels = {
            dim: TOKENS if all(count == size for count, size in by.items()) else f"{name}.{dim}"
            for dim, by in sizes.items()
            if len(set(by.values())) > 1
        }
        if labels:
            found[f"{_ARGUMENT}.{position}"] = labels
        position += 1
    return found


def _example(tensor: Tensor) -> Tensor:
    """A tensor to trace with: one of inference mode cannot be used outside of it."""
    if not tensor.is_inference():
        return tensor.detach()
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
