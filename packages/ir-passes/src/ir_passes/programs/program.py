"""A program of one range of token counts, ready to be bound to the model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir_passes.backends.piece import CompiledPiece
from ir_passes.base import SizeRange
from ir_passes.programs.donated_inputs import refuse_sharing
from ir_passes.programs.plan import PieceStep, ProgramPlan
from ir_passes.programs.stitching import Stitching

Flat = Callable[..., Sequence[Any]]

Wrap = Callable[[PieceStep, CompiledPiece], CompiledPiece]
"""What runs in the place of a piece's code: takes the piece and that code."""


@dataclass(frozen=True, slots=True)
class Program:
    """What runs calls of a range of token counts.

    Attributes:
        sizes: the token counts.
        plan: the steps.
        code: by a piece's name; equal pieces share theirs.
        targets: the ops between pieces, by the target of their calls.
        constants: the graph's own tensors by name.
    """

    sizes: SizeRange
    plan: ProgramPlan = field(repr=False)
    code: Mapping[str, CompiledPiece] = field(repr=False)
    targets: Mapping[str, Callable[..., Any]] = field(repr=False)
    constants: Mapping[str, Any] = field(repr=False)

    def bind(self, state: Mapping[int, Any], wrap: Wrap | None = None) -> Flat:
        """The function of the inputs that are no state; state by the position of its input.

        `wrap` is called for every piece, in the order in which they run.
        """
        plan = self.plan
        names = {plan.inputs[position]: value for position, value in state.items()}
        pieces = {} if wrap is None else {
            step.name: wrap(step, self.code[step.name]) for step in plan.pieces
        }  # fmt: skip
        function = self.stitching().function(names, pieces)
        free = [place for place in range(len(plan.inputs)) if place not in state]
        donated = [index for index, place in enumerate(free) if place in plan.overwritten]
        return refuse_sharing(function, donated, tuple(state.values())) if donated else function

    def stitching(self) -> Stitching:
        """The source of the function, and what its names stand for."""
        return Stitching(self.plan, self.code, self.targets, self.constants)
