"""One compilation of a model: one trace, every range, then what broken guards ask for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir_passes.base import SizeRange
from ir_passes.compiling.compiler import Compiler
from ir_passes.compiling.dump import dump_trace
from ir_passes.compiling.interface import argument_check_of, interface_of
from ir_passes.compiling.program import RangeProgram
from ir_passes.compiling.recipe import Recipe
from ir_passes.compiling.sizes import broken_guards, plan_ranges, token_sizes, unjudged_guards
from ir_passes.config import GuardPolicy
from ir_passes.errors import CompileError
from ir_passes.guards import bounds_of
from ir_passes.programs.compiled_model import ModelParts
from ir_passes.programs.interface import Interface
from ir_passes.programs.progress import Progress, no_progress
from ir_passes.programs.report import CompileReport
from ir_passes.programs.request import CompileRequest
from ir_passes.shape_guard import BrokenGuard, ShapeGuard
from ir_passes.tracing.dynamic_dims import TOKENS, DynamicDims, shapes_mode
from ir_passes.tracing.model_trace import ModelTrace, trace_call

_logger = logging.getLogger("ir_passes.compiler")

_MAX_REBUILDS = 16


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compiled model with all that it was made from.

    Attributes:
        parts: what runs.
        trace: of the model, for every token count.
        rebuilt: by token count, the traces of those that a guard excludes.
        programs: one for each range and each size that a guard excludes.
        recipe: how it was compiled.
    """

    parts: ModelParts
    trace: ModelTrace
    rebuilt: Mapping[int, ModelTrace]
    programs: tuple[RangeProgram, ...]
    recipe: Recipe


class Session:
    """One compilation of one model."""

    def __init__(self, request: CompileRequest, progress: Progress = no_progress) -> None:
        self._request = request
        self._config = request.config
        self._limits = request.limits
        self._progress = progress
        self._recipe = Recipe.of(request.config)
        self._shapes = request.config.dynamic_shapes_config.type
        self._rebuilt: dict[int, ModelTrace] = {}

    def run(self) -> Compilation:
        """Trace once, compile every range, then what broken guards ask for."""
        request = self._request
        self._progress("tracing", 0, 1)
        trace = self._trace(request.args, request.kwargs, request.dims)
        self._progress("tracing", 1, 1)
        dump_trace(self._recipe.dump_path, trace)
        compiler = self._compiler(trace)
        interface = interface_of(trace)
        with shapes_mode(self._shapes):
            programs = [compiler.compile(sizes) for sizes in self._ranges(trace)]
        guards = compiler.guards(programs)
        self._refuse_unjudged(guards, trace)
        used = frozenset().union(*(program.symbols() for program in programs))
        assumed = (*guards, *bounds_of(trace.whole.mode, used))
        broken = broken_guards(assumed, trace.symbols, self._limits)
        parts = [(interface, program) for program in programs]
        parts += self._settle(broken)
        report = CompileReport(
            self._recipe.backend.name,
            tuple(program.report() for _, program in parts),
            guards,
            broken,
            {**trace.seconds, **compiler.seconds},
        )
        model = ModelParts(
            tuple((interface, program.program) for interface, program in parts),
            argument_check_of(trace),
            report,
            self._limits.get(TOKENS),
        )
        everything = tuple(program for _, program in parts)
        return Compilation(model, trace, self._rebuilt, everything, self._recipe)

    def _trace(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], dims: DynamicDims
    ) -> ModelTrace:
        return trace_call(
            self._request.function,
            args,
            kwargs,
            dynamic_dims=dims,
            shapes=self._shapes,
            dialect=self._recipe.dialect,
        )

    def _compiler(self, trace: ModelTrace) -> Compiler:
        tokens = trace.symbols.get(TOKENS, frozenset())
        return Compiler(trace.whole, self._recipe, tokens, self._progress)

    def _ranges(self, trace: ModelTrace) -> tuple[SizeRange, ...]:
        endpoints = {*self._config.compile_ranges_endpoints}
        for entry in self._recipe.pipeline:
            if entry.is_enabled:
                endpoints |= {*entry.step.endpoints()}
        endpoints |= {*self._recipe.dialect.registry.priorities.row_ends()}
        limit = self._limits.get(TOKENS)
        beyond = [each for each in self._config.compile_sizes if limit and each > limit]
        if beyond:
            raise CompileError(
                f"`compile_sizes` names {beyond}, but a call has at most {limit} tokens."
            )
        if not trace.symbols.get(TOKENS):
            return (SizeRange(1, limit),)
        return plan_ranges(limit, endpoints, self._config.compile_sizes)

    def _refuse_unjudged(self, guards: Sequence[ShapeGuard], trace: ModelTrace) -> None:
        if not self._config.dynamic_shapes_config.evaluate_guards:
            return
        left = unjudged_guards(guards, trace.symbols, self._limits)
        if left:
            listed = "\n".join(f"  `{each.expression}` ({each.cause}, {each.location})"
                               for each in left)  # fmt: skip
            raise CompileError(
                f"`evaluate_guards` is set, but these cannot be evaluated:\n{listed}\nGive "
                "`limits` for every label of `dynamic_dims`."
            )

    def _settle(self, broken: Sequence[BrokenGuard]) -> list[tuple[Interface, RangeProgram]]:
        """Do about broken guards what the policy says."""
        sizes = token_sizes(broken)
        listed = "\n".join(f"  {each}" for each in broken[:8])
        policy = self._config.dynamic_shapes_config.guards
        if not broken:
            return []
        if policy is GuardPolicy.WARN:
            _logger.warning("Dropped guards do not hold for every size:\n%s", listed)
            return []
        can_rebuild = len(sizes) <= _MAX_REBUILDS and all(
            set(each.sizes) == {TOKENS} for each in broken
        )
        if policy is GuardPolicy.FAIL or not can_rebuild:
            raise CompileError(
                f"Guards do not hold for sizes that are to be served ({len(broken)} in all):\n"
                f"{listed}\nChange the model's lines, use dynamic shapes `unbacked`, or set "
                "`guards` to `rebuild`, which compiles such token counts by themselves (up to "
                f"{_MAX_REBUILDS})."
            )
        return [self._rebuild(size) for size in sizes]

    def _rebuild(self, size: int) -> tuple[Interface, RangeProgram]:
        """A program of one token count, traced for it alone."""
        _logger.info("Tracing again for %d tokens, which a guard excludes", size)
        request = self._request.resized(size)
        trace = self._rebuilt[size] = self._trace(request.args, request.kwargs, self._other_dims())
        compiler = self._compiler(trace)
        with shapes_mode(self._shapes):
            program = compiler.compile(SizeRange(size, size), "_rebuilt")
        return interface_of(trace), program

    def _other_dims(self) -> DynamicDims:
        """The dynamic dims that do not count tokens."""
        kept: dict[str, Mapping[int, str]] = {}
        for path, given in self._request.dims.items():
            if isinstance(given, Mapping):
                labels = {dim: label for dim, label in given.items() if label != TOKENS}
                if labels:
                    kept[path] = labels
        return kept
