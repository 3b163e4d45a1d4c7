"""Compiles a functional graph: one program for each range, one unit for all equal pieces."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter

import sympy

from ir_passes.backends.base import GraphForm
from ir_passes.base import PassContext, SizeRange
from ir_passes.compiling.copies import copy_module
from ir_passes.compiling.dump import describe_range, dump_program
from ir_passes.compiling.program import RangeProgram
from ir_passes.compiling.recipe import Recipe
from ir_passes.compiling.units import Unit, compile_piece
from ir_passes.lowering.ranged_choices import ranged_providers
from ir_passes.programs.progress import Progress, no_progress
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.shape_guard import ShapeGuard
from ir_passes.splitting.split import Piece, split_graph
from ir_passes.splitting.structure import structure_of
from ir_passes.tracing.whole_graph import WholeGraph

_logger = logging.getLogger("ir_passes.compiler")


_Key = tuple[str, int | None, tuple[str, ...]]
"""A piece's structure, its token count if that is fixed, and what timing chose by the range."""


class Compiler:
    """Compiles programs of one graph and remembers every unit that it made.

    Attributes:
        seconds: by phase: passes (with the split) and pieces.
    """

    def __init__(
        self,
        whole: WholeGraph,
        recipe: Recipe,
        tokens: frozenset[sympy.Symbol] = frozenset(),
        progress: Progress = no_progress,
    ) -> None:
        """`tokens` are the symbols that count tokens: static programs give them a value."""
        self._whole = whole
        self._tokens = tokens
        self._recipe = recipe
        self._progress = progress
        self._units: dict[_Key, Unit] = {}
        self.seconds: dict[str, float] = {"passes": 0.0, "pieces": 0.0}

    def compile(self, sizes: SizeRange, label: str = "") -> RangeProgram:
        """Run the passes for a range, split, and compile the pieces that are new.

        Raises:
            PassError, SplitError, LoweringError, BackendError: what failed, and where.
        """
        known = dict.fromkeys(self._tokens, (sizes.first, sizes.last))
        with self._recipe.dialect.registry.priorities.within_sizes(known):
            return self._compile(sizes, label)

    def _compile(self, sizes: SizeRange, label: str) -> RangeProgram:
        recipe = self._recipe
        started = perf_counter()
        module = copy_module(self._whole.module)
        dump = self._dump_path(sizes, label)
        passes = run_pipeline(
            recipe.pipeline,
            module,
            PassContext(recipe.dialect, sizes, recipe.axes),
            RunOptions(recipe.verify_each, dump),
        )
        split = split_graph(module, recipe.dialect)
        self.seconds["passes"] += perf_counter() - started
        started = perf_counter()
        static = self._static_values(sizes)
        served = sizes if static or sizes.first != sizes.last else SizeRange()
        units: dict[str, Unit] = {}
        for done, piece in enumerate(split.pieces):
            self._progress(f"token counts {sizes}", done, len(split.pieces))
            key = self._key(piece, sizes.first if static else None)
            if key not in self._units:
                self._units[key] = compile_piece(
                    piece, recipe.backend, recipe.dialect, served, static, recipe.options
                )
            units[piece.name] = self._units[key]
        self._progress(f"token counts {sizes}", len(split.pieces), len(split.pieces))
        seconds = perf_counter() - started
        self.seconds["pieces"] += seconds
        program = RangeProgram.of(sizes, passes, split, units, recipe.dialect)
        _logger.info(
            "Compiled token counts %s: %d of %d pieces are distinct (%.2f s)",
            sizes,
            len(program.distinct_units),
            len(units),
            seconds,
        )
        dump_program(dump, program, recipe.dialect)
        return program

    def guards(self, programs: Iterable[RangeProgram]) -> tuple[ShapeGuard, ...]:
        """All that was assumed about sizes: by the trace, by passes and by compiling units."""
        found = list(self._whole.guards)
        for program in programs:
            found += [guard for each in program.passes.passes for guard in each.guards]
        found += [guard for unit in self._units.values() for guard in unit.guards]
        return tuple(dict.fromkeys(found))

    def _key(self, piece: Piece, size: int | None) -> _Key:
        dialect, form = self._recipe.dialect, self._recipe.backend.form
        is_lowered = form is GraphForm.LOWERED  # other forms ask for the choice when they run
        chosen = ranged_providers(piece.module.graph, dialect) if is_lowered else ()
        return structure_of(piece, dialect), size, chosen

    def _static_values(self, sizes: SizeRange) -> Mapping[sympy.Symbol, int]:
        if sizes.first != sizes.last:
            return {}
        if self._recipe.dialect.registry.is_batch_invariant():
            # Code of its own would sum in another order than that of larger batches.
            _logger.warning(
                "Batch invariance is on: a count of %d tokens has the code of all others",
                sizes.first,
            )
            return {}
        return dict.fromkeys(self._tokens, sizes.first)

    def _dump_path(self, sizes: SizeRange, label: str) -> Path | None:
        if self._recipe.dump_path is None:
            return None
        return self._recipe.dump_path / f"{describe_range(sizes)}{label}"
