"""The function that runs a split graph: generated Python that calls pieces and splitting ops."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg

from ir_core.generated_code import build
from ir_passes.backends.base import CompiledPiece
from ir_passes.dialect import Dialect
from ir_passes.splitting.split import Piece, SplitGraph, Step

_LITERALS = (int, str, bool, type(None))


class Stitching:
    """Source of a program and the values that its names stand for.

    State of the model is among those values, so that a call passes only what varies.
    """

    def __init__(
        self, split: SplitGraph, dialect: Dialect, pieces: Mapping[str, CompiledPiece]
    ) -> None:
        self._split = split
        self._dialect = dialect
        self._environment: dict[str, Any] = dict(pieces)
        for node in split.constants:
            self._environment[node.name] = attrgetter(str(node.target))(split.module)

    def function(
        self, state: Mapping[str, Any], pieces: Mapping[str, CompiledPiece]
    ) -> Callable[..., Sequence[Any]]:
        """The program as a function of the inputs that are not in `state`, in their order.

        Args:
            state: values of inputs by the name of their node, fixed from now on.
            pieces: code by the name of a piece, in the place of its own.
        """
        text = self.source(state)
        return build("program", text, {**self._environment, **pieces, **state}, "program")

    def source(self, state: Mapping[str, Any]) -> str:
        """The program's text."""
        names = [node.name for node in self._split.inputs if node.name not in state]
        dying = self._last_uses(set(state))
        lines = [f"def program({', '.join(names)}):"]
        lines += [f"    {_measure(node)}" for node in self._split.sizes]
        for index, step in enumerate(self._split.steps):
            lines.append(f"    {self._line(step)}")
            if dying[index]:
                lines.append(f"    del {', '.join(dying[index])}")
        results = self._spell(tuple(self._results()))
        return "\n".join([*lines, f"    return {results}"]) + "\n"

    def _results(self) -> Sequence[Any]:
        given: Any = self._split.output.args[0]
        return given if isinstance(given, list | tuple) else (given,)

    def _line(self, step: Step) -> str:
        if isinstance(step, Piece):
            inputs = ", ".join(node.name for node in step.inputs)
            targets = "".join(f"{node.name}, " for node in step.outputs)
            return f"{targets}= {step.name}([{inputs}])" if targets else f"{step.name}([{inputs}])"
        if step.target is operator.getitem:
            source, index = step.args
            return f"{step.name} = {self._spell(source)}[{index!r}]"
        target = self._bind(self._dialect.op_of(step) or step.target, "op")
        given = [self._spell(each) for each in step.args]
        given += [f"{name}={self._spell(each)}" for name, each in step.kwargs.items()]
        call = f"{target}({', '.join(given)})"
        return f"{step.name} = {call}" if step.users else call

    def _spell(self, value: Any) -> str:
        if isinstance(value, Node):
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

    def _last_uses(self, kept: set[str]) -> list[list[str]]:
        """For each step the names that nothing needs after it."""
        steps = self._split.steps
        last: dict[str, int] = {}
        for index, step in enumerate(steps):
            for node in _touched(step):
                last[node.name] = index
        stays = kept | {node.name for node in self._split.constants}
        stays |= {node.name for node in self._split.output.all_input_nodes}
        ends: list[list[str]] = [[] for _ in steps]
        for name, index in last.items():
            if name not in stays:
                ends[index].append(name)
        return ends


def _touched(step: Step) -> list[Node]:
    if isinstance(step, Piece):
        return [*step.inputs, *step.outputs]
    found: list[Node] = []
    map_arg((step.args, step.kwargs), found.append)
    return [*found, step] if step.users else found


def _measure(node: Node) -> str:
    source, dim = node.args
    return f"{node.name} = {source}.shape[{dim}]"
