"""The program of one range of token counts: passes, split, units and the function they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch.fx import Node

from ir_passes.arguments import bound_arguments
from ir_passes.backends.base import CompiledPiece
from ir_passes.base import SizeRange
from ir_passes.compiling.donated_inputs import refuse_sharing
from ir_passes.compiling.stitching import Stitching
from ir_passes.compiling.units import Unit
from ir_passes.dialect import Dialect
from ir_passes.evaluation import fake_arguments
from ir_passes.location import line_of
from ir_passes.lowering.selections import NodeSelection
from ir_passes.metadata import fake_of, storages_of, symbols_in
from ir_passes.report import PipelineReport
from ir_passes.splitting.split import Piece, SplitGraph

Flat = Callable[..., Sequence[Any]]

Wrap = Callable[[Piece, CompiledPiece], CompiledPiece]
"""What runs in the place of a piece's code: takes the piece and that code."""


@dataclass(frozen=True, slots=True)
class RangeProgram:
    """A whole graph compiled for a range of token counts.

    Attributes:
        sizes: the token counts.
        passes: what the pipeline did for this range.
        split: the graph after the passes, in steps.
        units: by a piece's name its compiled code, which equal pieces share.
        splitting: selections of the splitting ops, which run as in eager mode.
    """

    sizes: SizeRange
    passes: PipelineReport = field(repr=False)
    split: SplitGraph = field(repr=False)
    units: Mapping[str, Unit] = field(repr=False)
    splitting: tuple[NodeSelection, ...]
    stitching: Stitching = field(repr=False)

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
        stitching = Stitching(split, dialect, {name: unit.call for name, unit in units.items()})
        return cls(sizes, passes, split, units, tuple(_splitting(split, dialect)), stitching)

    @property
    def distinct_units(self) -> tuple[Unit, ...]:
        """Each unit once, in order of first use."""
        return tuple({id(unit): unit for unit in self.units.values()}.values())

    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that compiled code depends on; sizes that only pass by are not among them."""
        values = [fake_of(node) for piece in self.split.pieces for node in piece.inputs]
        return symbols_in(values)

    def bind(self, state: Mapping[int, Any], wrap: Wrap | None = None) -> Flat:
        """The function of the inputs that are no state; state by the position of its input.

        `wrap` is called for every piece, in the order in which they run.
        """
        names = {self.split.inputs[position].name: value for position, value in state.items()}
        pieces = {} if wrap is None else self._wrapped(wrap)
        function = self.stitching.function(names, pieces)
        free = [place for place in range(len(self.split.inputs)) if place not in state]
        donated = [index for index, place in enumerate(free) if place in self._overwritten()]
        return refuse_sharing(function, donated, tuple(state.values())) if donated else function

    def _wrapped(self, wrap: Wrap) -> dict[str, CompiledPiece]:
        return {each.name: wrap(each, self.units[each.name].call) for each in self.split.pieces}

    def _overwritten(self) -> set[int]:
        """Positions of the graph's inputs whose memory some piece may overwrite: donated ones."""
        storages = frozenset().union(
            *(
                storages_of(piece.inputs[place])
                for piece in self.split.pieces
                for place in piece.overwritable
            )
        )
        inputs = enumerate(self.split.inputs)
        return {place for place, node in inputs if storages_of(node) & storages}

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
