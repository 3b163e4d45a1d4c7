"""The function that runs a program: generated Python that calls pieces and splitting ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir_core.generated_code import build
from ir_passes.backends.piece import CompiledPiece
from ir_passes.programs.plan import ItemStep, PieceStep, ProgramPlan, SizeStep, Step, Value

_LITERALS = (int, str, bool, type(None))


class Stitching:
    """Source of a program and the values that its names stand for.

    State of the model is among those values, so that a call passes only what varies.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        pieces: Mapping[str, CompiledPiece],
        targets: Mapping[str, Callable[..., Any]],
        constants: Mapping[str, Any],
    ) -> None:
        """Code by the name of a piece, ops by a call's target, tensors by a constant's name."""
        self._plan = plan
        self._targets = targets
        self._environment: dict[str, Any] = {**pieces, **constants}

    def function(
        self, state: Mapping[str, Any], pieces: Mapping[str, CompiledPiece]
    ) -> Callable[..., Sequence[Any]]:
        """The program as a function of the inputs that are not in `state`, in their order.

        Args:
            state: values of inputs by their name, fixed from now on.
            pieces: code by the name of a piece, in the place of its own.
        """
        text = self.source(state)
        return build("program", text, {**self._environment, **pieces, **state}, "program")

    def source(self, state: Mapping[str, Any]) -> str:
        """The program's text."""
        plan = self._plan
        names = [name for name in plan.inputs if name not in state]
        dying = plan.last_uses(frozenset(state))
        lines = [f"def program({', '.join(names)}):"]
        lines += [f"    {_measure(step)}" for step in plan.sizes]
        for step, names in zip(plan.steps, dying, strict=True):
            lines.append(f"    {self._line(step)}")
            if names:
                lines.append(f"    del {', '.join(names)}")
        return "\n".join([*lines, f"    return {self._spell(plan.results)}"]) + "\n"

    def _line(self, step: Step) -> str:
        if isinstance(step, PieceStep):
            targets = "".join(f"{name}, " for name in step.outputs)
            call = f"{step.name}([{', '.join(step.inputs)}])"
            return f"{targets}= {call}" if targets else call
        if isinstance(step, ItemStep):
            return f"{step.name} = {step.source}[{step.index!r}]"
        target = self._bind(self._targets[step.target], "op")
        given = [self._spell(each) for each in step.args]
        given += [f"{name}={self._spell(each)}" for name, each in step.kwargs.items()]
        call = f"{target}({', '.join(given)})"
        return call if step.name is None else f"{step.name} = {call}"

    def _spell(self, value: Any) -> str:
        if isinstance(value, Value):
            return value.name
        if isinstance(value, tuple):
            return f"({''.join(f'{self._spell(each)}, ' for each in value)})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._spell, value))}]"
        if type(value) in _LITERALS:
            return repr(value)
        return self._bind(value, "constant")

    def _bind(self, value: Any, kind: str) -> str:
        for name, known in self._environment.items():
            if known is value:
                return name
        name = f"{kind}_{len(self._environment)}"
        self._environment[name] = value
        return name


def _measure(step: SizeStep) -> str:
    return f"{step.name} = {step.source}.shape[{step.dim}]"
