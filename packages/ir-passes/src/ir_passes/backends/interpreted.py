"""Backends without a code generator: the lowered graph as it is, and after AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule

from ir_passes.backends.base import Backend, BackendContext, CompiledPiece
from ir_passes.metadata import fake_mode_of, fake_of


class Eager(Backend):
    """Runs the lowered graph op by op."""

    name = "eager"

    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Generate the graph's Python code."""
        module.recompile()
        return _boxed(module)


class AotEager(Backend):
    """Runs what AOTAutograd makes of the lowered graph, op by op: tells which of them is wrong."""

    name = "aot_eager"

    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Trace the graph through AOTAutograd, which functionalises what the kernels write."""
        # It costs seconds, and only this backend needs it.
        from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415

        def keep(inner: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return inner

        compiler = aot_autograd(fw_compiler=keep, inference_compiler=keep)
        fakes = [fake_of(node) for node in module.graph.find_nodes(op="placeholder")]
        module.recompile()
        with torch.no_grad(), tracing(TracingContext(fake_mode_of(module.graph))):
            return _boxed(compiler(module, fakes))


def _boxed(function: Callable[..., Any]) -> CompiledPiece:
    def run(inputs: list[Any]) -> Sequence[Any]:
        arguments = tuple(inputs)
        inputs.clear()
        result: Sequence[Any] = function(*arguments)
        return result

    return run
