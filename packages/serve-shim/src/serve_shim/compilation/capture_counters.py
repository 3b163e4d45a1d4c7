"""Owns what is counted of captured graphs, as plain numbers; refuses to decide anything by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from serve_shim.compilation.graph_table import GraphKey, Uncaptured


@dataclass(slots=True, eq=False)
class CaptureCounters:
    """Written by the engine's thread. Any thread may read: no key is ever added or removed.

    Attributes:
        replays: steps by the graph that they ran.
        uncaptured: steps that ran without one, by reason.
        num_tokens: tokens of the steps that ran as graphs.
        num_padding: rows that these computed for nothing.
        num_graphs: captured graphs, one for each piece of a PIECEWISE size.
        num_bytes: memory that they hold.
        seconds: what the capture took.
    """

    replays: dict[GraphKey, int]
    uncaptured: dict[Uncaptured, int] = field(default_factory=lambda: dict.fromkeys(Uncaptured, 0))
    num_tokens: int = 0
    num_padding: int = 0
    num_graphs: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, keys: Iterable[GraphKey]) -> CaptureCounters:
        """Zero for each of these graphs and for each reason."""
        return cls(dict.fromkeys(keys, 0))

    def count_replay(self, key: GraphKey, num_tokens: int) -> None:
        """A step of so many tokens ran as a graph."""
        self.replays[key] += 1
        self.num_tokens += num_tokens
        self.num_padding += key.tokens - num_tokens

    def forget_steps(self) -> None:
        """Begin to count anew, as after a warm-up; the facts of the capture stay."""
        self.replays.update(dict.fromkeys(self.replays, 0))
        self.uncaptured.update(dict.fromkeys(self.uncaptured, 0))
        self.num_tokens = self.num_padding = 0
