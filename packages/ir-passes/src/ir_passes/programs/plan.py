"""A program as data: which code runs on which values, in which order. It holds no code itself.

Values have names. In the arguments of a call, `Value` stands for one; all else is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the program, in the arguments of a call or in its results."""

    name: str


@dataclass(frozen=True, slots=True)
class SizeStep:
    """Measures a tensor: `name = source.shape[dim]`."""

    name: str
    source: str
    dim: int


@dataclass(frozen=True, slots=True)
class PieceStep:
    """Runs compiled code.

    Attributes:
        name: of the piece; the program's code is found by it.
        inputs: names of the values it takes.
        outputs: names of those it computes.
        labels: the inputs as a person would call them, `self.norm.weight`.
        moving: positions of inputs that a splitting op returned, in new memory each time.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    labels: tuple[str, ...]
    moving: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallStep:
    """Calls an op between pieces, `ir.paged_attention` or `aten.add.Tensor`.

    `name` is None where nothing takes its result.
    """

    name: str | None
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemStep:
    """Takes one result of a call that has several: `name = source[index]`."""

    name: str
    source: str
    index: int


Step = PieceStep | CallStep | ItemStep


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program.

    Attributes:
        inputs: names of the graph's inputs, in order.
        sizes: what is measured before the first step.
        steps: in the order in which they run.
        results: what the program returns: values and constants.
        constants: names of the tensors that belong to the graph itself.
        overwritten: positions of inputs whose memory some piece may overwrite.
    """

    inputs: tuple[str, ...]
    sizes: tuple[SizeStep, ...]
    steps: tuple[Step, ...]
    results: tuple[Any, ...]
    constants: tuple[str, ...] = ()
    overwritten: frozenset[int] = frozenset()

    @property
    def pieces(self) -> tuple[PieceStep, ...]:
        """The steps that run compiled code."""
        return tuple(step for step in self.steps if isinstance(step, PieceStep))

    @property
    def targets(self) -> tuple[str, ...]:
        """The ops that are called between pieces, each once."""
        calls = (step.target for step in self.steps if isinstance(step, CallStep))
        return tuple(dict.fromkeys(calls))

    def last_uses(self, kept: frozenset[str]) -> Sequence[Sequence[str]]:
        """For each step the names that nothing needs after it, but for those that are kept."""
        last: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            last.update(dict.fromkeys(_touched(step), index))
        stays = kept | {*self.constants, *names_in(self.results)}
        ends: list[list[str]] = [[] for _ in self.steps]
        for name, index in last.items():
            if name not in stays:
                ends[index].append(name)
        return ends


def names_in(value: Any) -> Iterator[str]:
    """Names of the values in a nest of arguments."""
    if isinstance(value, Value):
        yield value.name
    elif isinstance(value, list | tuple):
        for each in value:
            yield from names_in(each)
    elif isinstance(value, Mapping):
        yield from names_in(tuple(value.values()))


def _touched(step: Step) -> tuple[str, ...]:
    if isinstance(step, PieceStep):
        return (*step.inputs, *step.outputs)
    if isinstance(step, ItemStep):
        return (step.source, step.name)
    own = () if step.name is None else (step.name,)
    return (*names_in((step.args, step.kwargs)), *own)
