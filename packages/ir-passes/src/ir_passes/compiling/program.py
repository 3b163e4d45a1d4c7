"""The program of one range of token counts with all that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sympy
from torch.fx import Node

from ir_passes.arguments import bound_arguments
from ir_passes.base import SizeRange
from ir_passes.compiling.plans import constants_of, plan_of, targets_of
from ir_passes.compiling.units import Unit
from ir_passes.dialect import Dialect
from ir_passes.evaluation import fake_arguments
from ir_passes.location import line_of
from ir_passes.lowering.selections import NodeSelection
from ir_passes.metadata import fake_of, symbols_in
from ir_passes.programs.program import Program
from ir_passes.programs.report import PieceReport, ProgramReport
from ir_passes.report import PipelineReport
from ir_passes.splitting.split import Piece, SplitGraph


@dataclass(frozen=True, slots=True)
class RangeProgram:
    """A whole graph compiled for a range of token counts.

    Attributes:
        sizes: the token counts.
        passes: what the pipeline did for this range.
        split: the graph after the passes, in steps.
        units: by a piece's name its compiled code, which equal pieces share.
        splitting: selections of the splitting ops, which run as in eager mode.
        program: what runs.
    """

    sizes: SizeRange
    passes: PipelineReport = field(repr=False)
    split: SplitGraph = field(repr=False)
    units: Mapping[str, Unit] = field(repr=False)
    splitting: tuple[NodeSelection, ...]
    program: Program = field(repr=False)

    @classmethod
    def of(
        cls,
        sizes: SizeRange,
        passes: PipelineReport,
        split: SplitGraph,
        units: Mapping[str, Unit],
        dialect: Dialect,
    ) -> RangeProgram:
        """Put the parts together."""
        program = Program(
            sizes,
            plan_of(split, dialect),
            {name: unit.call for name, unit in units.items()},
            targets_of(split, dialect),
            constants_of(split),
        )
        return cls(sizes, passes, split, units, tuple(_splitting(split, dialect)), program)

    @property
    def distinct_units(self) -> tuple[Unit, ...]:
        """Each unit once, in order of first use."""
        return tuple({id(unit): unit for unit in self.units.values()}.values())

    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that compiled code depends on; sizes that only pass by are not among them."""
        values = [fake_of(node) for piece in self.split.pieces for node in piece.inputs]
        return symbols_in(values)

    def report(self) -> ProgramReport:
        """The facts of the program."""
        used = list(self.units.values())
        pieces = tuple(
            PieceReport(
                unit.piece.name,
                sum(each is unit for each in used),
                unit.seconds,
                unit.lowered.selections,
                unit.lowered.clones,
            )
            for unit in self.distinct_units
        )
        return ProgramReport(self.sizes, self.passes, pieces, self.splitting)

    def selections(self) -> Iterator[NodeSelection]:
        """A row for every IR op of the program, those of equal pieces repeated."""
        for step in self.split.steps:
            if isinstance(step, Piece):
                yield from self.units[step.name].lowered.selections
        yield from self.splitting


def _splitting(split: SplitGraph, dialect: Dialect) -> Iterator[NodeSelection]:
    for step in split.steps:
        op = dialect.op_of(step) if isinstance(step, Node) else None
        if op is None or not isinstance(step, Node):
            continue
        values, _ = fake_arguments(tuple(bound_arguments(step).values()), {})
        yield NodeSelection.of(step.name, line_of(step), op.select(*values))
