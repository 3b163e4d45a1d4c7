"""The front door: a model and example arguments in, a compiled model out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir_passes.base import SizeRange
from ir_passes.compiling.compiled_model import CompiledModel
from ir_passes.compiling.compiler import Compiler, Progress, no_progress
from ir_passes.compiling.dump import dump_trace
from ir_passes.compiling.interface import Interface
from ir_passes.compiling.program import RangeProgram
from ir_passes.compiling.recipe import Recipe
from ir_passes.compiling.report import CompileReport, ProgramReport
from ir_passes.compiling.sizes import (
    BrokenGuard,
    broken_guards,
    plan_ranges,
    token_sizes,
    unjudged_guards,
)
from ir_passes.compiling.support import declared_dims
from ir_passes.config import CompilationConfig, GuardPolicy
from ir_passes.errors import CompileError
from ir_passes.guards import ShapeGuard, bounds_of
from ir_passes.tracing.dynamic_dims import TOKENS, DynamicDims, shapes_mode
from ir_passes.tracing.model_trace import ModelTrace, trace_call
from ir_passes.tracing.resizing import resize_tokens

_logger = logging.getLogger("ir_passes.compiler")

_MAX_REBUILDS = 16


def compile(  # noqa: A001
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_dims: DynamicDims | None = None,
    limits: Mapping[str, int] | None = None,
    config: CompilationConfig | None = None,
    progress: Progress = no_progress,
) -> CompiledModel:
    """Compile a module or function for every token count up to a limit.

    Args:
        function: what is called; its tensors are read as they are now.
        args: example arguments; nothing is executed with them.
        kwargs: the same by name.
        dynamic_dims: which dims vary: see `ir_passes.tracing.dynamic_dims`. By default those that
            `support_compile` declared.
        limits: greatest size of each label of a dynamic dim, `{"tokens": 2048}`. Every guard is
            evaluated for all sizes up to it, and calls beyond it are refused.
        config: backend, sizes, ranges, shapes mode, passes.
        progress: called as programs are compiled.

    Raises:
        CompileError: a served size breaks a guard and the policy is `fail`; names the guard, its
            line and the sizes.
        TraceError, PassError, LoweringError, BackendError, DonationError: what failed, and where.
    """
    config = config or CompilationConfig()
    session = _Session(function, args, kwargs or {}, dynamic_dims, limits or {}, config, progress)
    return session.run()


class _Session:
    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        dynamic_dims: DynamicDims | None,
        limits: Mapping[str, int],
        config: CompilationConfig,
        progress: Progress,
    ) -> None:
        self._function = function
        self._args, self._kwargs = args, kwargs
        self._dims = declared_dims(function) if dynamic_dims is None else dynamic_dims
        self._limits = limits
        self._config = config
        self._progress = progress
        self._recipe = Recipe.of(config)
        self._shapes = config.dynamic_shapes_config.type

    def run(self) -> CompiledModel:
        """Trace once, compile every range, then what broken guards ask for."""
        self._progress("tracing", 0, 1)
        trace = self._trace(self._args, self._kwargs, self._dims)
        self._progress("tracing", 1, 1)
        dump_trace(self._recipe.dump_path, trace)
        compiler = self._compiler(trace)
        interface = Interface.of(trace)
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
            tuple(ProgramReport.of(program) for _, program in parts),
            guards,
            broken,
            {**trace.seconds, **compiler.seconds},
        )
        _log(report)
        return CompiledModel(parts, report, self._limits.get(TOKENS))

    def _trace(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], dims: DynamicDims
    ) -> ModelTrace:
        return trace_call(
            self._function,
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
        args, kwargs = self._resized(size)
        trace = self._trace(args, kwargs, self._other_dims())
        compiler = self._compiler(trace)
        with shapes_mode(self._shapes):
            program = compiler.compile(SizeRange(size, size), "_rebuilt")
        return Interface.of(trace), program

    def _other_dims(self) -> DynamicDims:
        """The dynamic dims that do not count tokens."""
        kept: dict[str, Mapping[int, str]] = {}
        for path, given in self._dims.items():
            if isinstance(given, Mapping):
                labels = {dim: label for dim, label in given.items() if label != TOKENS}
                if labels:
                    kept[path] = labels
        return kept

    def _resized(self, size: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return resize_tokens(self._function, self._args, self._kwargs, self._dims, size)


def _log(report: CompileReport) -> None:
    for op, counts in report.selected_impls.items():
        used = ", ".join(f"{name}: {count}" for name, count in counts.items())
        _logger.info("Selected implementations of %s: %s", op, used)
