"""Median times of contenders measured in turns, so that what disturbs one disturbs all alike."""

import statistics
import time
from collections.abc import Sequence
from itertools import cycle, islice

from tools.bench.contender import Contender

_SAMPLE_S = 0.01
_MIN_SAMPLES = 5


def measure_in_turns(contenders: Sequence[Contender], seconds: float) -> list[float]:
    """Median microseconds of a call of each contender, within about `seconds` for all together.

    Successive calls of a contender take the next of its copies. Each gets at least five samples.
    """
    timers = [_Timer(contender) for contender in contenders]
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < _MIN_SAMPLES or time.perf_counter() < end:
        for timer in timers:
            timer.take_sample()
        rounds += 1
    return [statistics.median(timer.samples) for timer in timers]


class _Timer:
    """Samples of one contender, in microseconds per call."""

    def __init__(self, contender: Contender) -> None:
        self.samples: list[float] = []
        self._calls = cycle(contender.calls)
        first, second = self._time(1), self._time(1)  # the first one may set things up
        self._count = min(len(contender.calls), 1 + int(_SAMPLE_S / max(min(first, second), 1e-7)))

    def take_sample(self) -> None:
        self.samples.append(1e6 * self._time(self._count) / self._count)

    def _time(self, count: int) -> float:
        calls = list(islice(self._calls, count))
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start
