"""Compiles traced graphs for tests, without a model around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from ir_passes.backends.registry import find_backend
from ir_passes.base import SizeRange
from ir_passes.compiling.compiler import Compiler
from ir_passes.compiling.program import RangeProgram
from ir_passes.compiling.recipe import Recipe
from ir_passes.dialect import Dialect
from ir_passes.lowering.clones import CloneRow, eliminate_clones
from ir_passes.lowering.lower import Lowered, lower
from ir_passes.pipeline import Pipeline
from ir_passes.tracing.whole_graph import WholeGraph


def lower_whole(
    whole: WholeGraph, dialect: Dialect, overwritable: Sequence[str] = ()
) -> tuple[Lowered, tuple[CloneRow, ...]]:
    """Lower a graph as if it were one piece that may overwrite the inputs of these names."""
    lowered = lower(whole.module, dialect)
    placeholders: list[Node] = list(whole.module.graph.find_nodes(op="placeholder"))
    names = {each.path: node for each, node in zip(whole.inputs, placeholders, strict=True)}
    given = [names[name] for name in overwritable]
    rows = eliminate_clones(whole.module.graph, lowered.clones, given)
    whole.module.recompile()
    return lowered, rows


def compile_whole(
    whole: WholeGraph,
    dialect: Dialect | None = None,
    backend: str = "eager",
    pipeline: Pipeline | None = None,
) -> tuple[RangeProgram, Callable[..., Sequence[Any]]]:
    """The program of a graph, and the function that runs it on the graph's inputs."""
    recipe = Recipe(find_backend(backend), pipeline or Pipeline(), dialect or Dialect())
    program = Compiler(whole, recipe).compile(SizeRange())
    return program, whole.bind(program.program.bind({}))
