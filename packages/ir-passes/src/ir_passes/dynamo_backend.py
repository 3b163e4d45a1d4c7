"""Backend `ir` of torch.compile: Dynamo keeps its guards and compiles again when one breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ir_passes.base import SizeRange
from ir_passes.compiling.compiler import Compiler
from ir_passes.compiling.recipe import Recipe
from ir_passes.config import CompilationConfig
from ir_passes.errors import CompileError
from ir_passes.tracing.whole_graph import trace_graph


def compile_graph(
    module: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Sequence[Any]]:
    """Compile one graph of Dynamo's: `torch.compile(model, backend="ir")`, for inference only.

    Args:
        module: the graph, as Dynamo hands it to backends.
        example_inputs: its inputs; only whether they need gradients matters.
        options: fields of `CompilationConfig`, from `torch.compile(options=…)`.

    Raises:
        CompileError: an input requires grad while grad mode is on.
        pydantic.ValidationError: an option that does not exist or has a wrong value.
        PassesError, DonationError: what failed, and where.
    """
    config = CompilationConfig.model_validate(dict(options or {}))
    _refuse_grad(module, example_inputs)
    recipe = Recipe.of(config)
    whole = trace_graph(module, recipe.dialect)
    program = Compiler(whole, recipe).compile(SizeRange())
    return whole.bind(program.program.bind({}))


def _refuse_grad(module: GraphModule, example_inputs: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    placeholders = module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, example_inputs, strict=False):
        if isinstance(value, Tensor) and value.requires_grad:
            raise CompileError(
                f"Input `{node.name}` requires grad while grad mode is on, but backend `ir` is for "
                "inference. Use `torch.no_grad()` or `requires_grad_(False)`."
            )
