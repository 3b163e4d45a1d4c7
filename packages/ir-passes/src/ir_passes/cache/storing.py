"""The files of an entry, from a compilation. Imports the compile stack, which a hit never does."""

from __future__ import annotations

from importlib.metadata import entry_points

from ir_core import registry
from ir_passes.backends.registry import GROUP as BACKENDS
from ir_passes.cache.artifact import pack
from ir_passes.cache.conditions import CONDITIONS, Conditions
from ir_passes.cache.cpp_compiler import compiler_digest
from ir_passes.cache.dynamo_guards import portable_guards
from ir_passes.cache.factors import refuse_changed_sources
from ir_passes.cache.newer_files import own_modules, refuse_newer_files
from ir_passes.cache.op_choices import OpChoices
from ir_passes.cache.traced_sources import traced_sources
from ir_passes.compiling.dump import computation_graph, describe_range, transformed_code
from ir_passes.compiling.recipe import Recipe
from ir_passes.compiling.session import Compilation
from ir_passes.errors import CannotStoreError
from ir_passes.plugins import allowed_entries
from ir_passes.programs.request import CompileRequest


def files_of(compilation: Compilation, request: CompileRequest) -> dict[str, bytes]:
    """Everything that an entry holds: the model, its conditions, and texts for people.

    Raises:
        CannotStoreError: something cannot be represented, or told from another; says what.
    """
    refuse_changed_sources()
    recipe = compilation.recipe
    if recipe.dialect.registry is not registry():
        raise CannotStoreError("Its ops are of a registry that no other process can name.")
    save_format = request.config.compile_cache_save_format
    packed = pack(compilation.parts, recipe.backend.store, save_format)
    traces = {None: compilation.trace, **compilation.rebuilt}
    sources = {
        name: digest for trace in traces.values() for name, digest in traced_sources(trace).items()
    }
    choices = OpChoices.of(_ops(compilation), _modules(recipe), registry())
    modules = (name.removeprefix("module ") for name in choices.files)
    refuse_newer_files({*sources, *modules, *own_modules()})
    conditions = Conditions(
        {size: portable_guards(trace) for size, trace in traces.items()},
        sources,
        choices,
        compiler_digest() if packed.has_kernels else None,
    )
    return {**packed.files, CONDITIONS: conditions.to_bytes(), **_texts(compilation)}


def _ops(compilation: Compilation) -> set[str]:
    """Every IR op that was traced or selected."""
    dialect = compilation.recipe.dialect
    traces = (compilation.trace, *compilation.rebuilt.values())
    nodes = (node for trace in traces for node in trace.whole.module.graph.nodes)
    traced = map(dialect.op_of, nodes)
    selected = (row.op for each in compilation.programs for row in each.selections())
    return {*(op.name for op in traced if op is not None), *selected}


def _modules(recipe: Recipe) -> set[str]:
    """The modules of other distributions that take part: passes, backends, and who offers them."""
    steps = (entry.step for entry in recipe.pipeline)
    modules = {type(each).__module__ for each in (*steps, recipe.backend)}
    offers = (*allowed_entries(), *entry_points(group=BACKENDS, name=recipe.backend.name))
    modules |= {each.module for each in offers}
    return {each for each in modules if each.partition(".")[0] != __name__.partition(".")[0]}


def _texts(compilation: Compilation) -> dict[str, bytes]:
    texts = {"transformed_code.py": transformed_code(compilation.trace)}
    for number, program in enumerate(compilation.programs):
        suffix = f"_{describe_range(program.sizes)}" if number else ""
        texts[f"computation_graph{suffix}.py"] = computation_graph(program)
    return {name: text.encode() for name, text in texts.items()}
