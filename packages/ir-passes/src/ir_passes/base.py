"""The pass contract: what a pass is given, what it returns, what it promises. Runs nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import ClassVar

from torch.fx import Graph

from ir_passes.dialect import Dialect


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The token counts that a program is for, both ends included; `last` is None without end."""

    first: int = 1
    last: int | None = None

    def __str__(self) -> str:
        return f"{self.first}..{'' if self.last is None else self.last}"

    def __contains__(self, num_tokens: int) -> bool:
        return self.first <= num_tokens and (self.last is None or num_tokens <= self.last)


@dataclass(frozen=True, slots=True)
class PassContext:
    """All that a pass may know besides the graph.

    Attributes:
        dialect: which nodes are IR ops, which split.
        sizes: the token counts that this program is for.
        axes: number of ranks along each logical axis, `{"tp": 2}`; an absent one has 1.
    """

    dialect: Dialect = field(default_factory=Dialect)
    sizes: SizeRange = SizeRange()
    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class MatchRow:
    """One place that a pass looked at: changed, or left alone for a reason.

    Attributes:
        node: name of the node in the graph's text before the pass.
        line: "file:line" of the model's source.
        reason: why it was left alone; "" where it was changed.
    """

    node: str
    line: str
    reason: str = ""

    @property
    def is_match(self) -> bool:
        """Whether the place was changed."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass did: how many places it changed, remarks, and every place it looked at."""

    changed: int
    notes: tuple[str, ...] = ()
    matches: tuple[MatchRow, ...] = ()


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite of a whole graph in the dialect. Subclasses are frozen dataclasses.

    Options are fields with defaults. A pass keeps no state between runs: what it found goes into
    its result. Whatever it leaves must be in the dialect again (`ir_passes.verifier`).

    Attributes:
        name: unique in a pipeline; the module's name, verb_object.
        option: the field of `PassConfig` that turns it on and off; None for one that is on unless
            it is disabled by name.
        is_default: whether a pass with an option runs where that is neither on nor off.
        is_idempotent: running it again at once changes nothing.
        keeps_rows: calls that eager mode makes with as many rows as there are tokens still have
            them; where they do not, no choice by the number of rows is tuned.
    """

    name: ClassVar[str]
    option: ClassVar[str | None] = None
    is_default: ClassVar[bool] = False
    is_idempotent: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True

    @abstractmethod
    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Rewrite the graph in place and say what was done."""

    def refusal(self, context: PassContext) -> str | None:
        """Why the pass does not apply at all in this context; None if it does."""
        return None

    def takes_from(self, later: Pass) -> bool:
        """Whether this pass, run first, claims nodes that `later` could match as part of more."""
        return False

    def endpoints(self) -> tuple[int, ...]:
        """Token counts at which the pass changes its mind: no range of sizes may span one."""
        return ()

    def describe_options(self) -> str:
        """The options that differ from their defaults, `threshold=8`; "" for none."""
        given = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)
