"""Median times of several functions, taken in turns so that noise meets all of them alike."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

_LOOP_SECONDS = 2e-4
_MIN_ROUNDS = 5
_Name = TypeVar("_Name", bound=Hashable)


def median_microseconds(
    functions: Mapping[_Name, Callable[[], object]], seconds: float
) -> dict[_Name, float]:
    """Median microseconds per call of each function, within about `seconds` for all together."""
    loops = {name: _calibrate(function) for name, function in functions.items()}
    samples: dict[_Name, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < _MIN_ROUNDS or time.perf_counter() < end:
        for name, function in functions.items():
            samples[name].append(_time(function, loops[name]) * 1e6)
        rounds += 1
    return {name: statistics.median(times) for name, times in samples.items()}


def _calibrate(function: Callable[[], object]) -> int:
    """Calls that together take long enough for the clock; also warms the function up."""
    _time(function, 2)
    loops = 1
    while loops < 1 << 16 and _time(function, loops) * loops < _LOOP_SECONDS:
        loops *= 2
    return loops


def _time(function: Callable[[], object], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        function()
    return (time.perf_counter() - start) / loops
