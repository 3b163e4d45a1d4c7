"""Owns where the seconds of a step go, phase by phase; refuses to keep more than one step.

Wall time of the engine's thread, so a phase includes what it waits for other threads. A reading
costs a tenth of a microsecond, so it is always on.
"""

from collections.abc import Sequence
from enum import IntEnum
from time import perf_counter


class StepPhase(IntEnum):
    """The parts of a step, in order; the value is the place in `StepStats.phase_seconds`."""

    SCHEDULE = 0
    """Who runs, and with which blocks."""
    INPUTS = 1
    """Token ids, positions and block tables into the step's buffers, and to ranks."""
    FORWARD = 2
    """The model, up to hidden states."""
    LOGITS = 3
    """The head, for the rows that need it, and scores of prompts."""
    SAMPLE = 4
    """The choice of tokens, and their logprobs."""
    OUTPUT = 5
    """Text, stops, accounts and statistics."""
    DELIVER = 6
    """Waking the event loops."""


class StepClock:
    """Splits the time since `start` among phases."""

    __slots__ = ("_last", "_seconds")

    def __init__(self) -> None:
        self._seconds = [0.0] * len(StepPhase)
        self._last = 0.0

    def start(self) -> None:
        """Measure from now on; what lies between two steps belongs to neither."""
        self._last = perf_counter()

    def lap(self, phase: StepPhase) -> None:
        """All since the last reading was spent on `phase`."""
        now = perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    def spend(self, seconds: Sequence[float], *, others: StepPhase) -> None:
        """All since the last reading went elsewhere: so much by phase, the rest to `others`."""
        now = perf_counter()
        rest = now - self._last - sum(seconds)
        self._last = now
        for phase, each in enumerate(seconds):
            self._seconds[phase] += each
        self._seconds[others] += max(0.0, rest)

    def take(self) -> tuple[float, ...]:
        """The seconds of each phase since the last call."""
        seconds = tuple(self._seconds)
        self._seconds = [0.0] * len(seconds)
        return seconds
