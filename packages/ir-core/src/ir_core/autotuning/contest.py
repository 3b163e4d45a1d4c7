"""Times functions that do the same in turns, so that noise meets all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Run = Callable[[], object]
Clock = Callable[[], float]

_LOOP_SECONDS = 2e-4
_MOST_LOOPS = 1 << 12
_NUM_ROUNDS = 9
_NUM_SHOWN = 3
# One that takes that much longer in a first try is not worth further turns.
_HOPELESS = 3.0


class Contest:
    """Providers' functions for each number of tokens, and what became of those that dropped out.

    Args:
        functions: by provider and number of tokens, the one that has to be beaten first. A call of
            a function is `calls[count]` calls of the op.
        calls: by number of tokens.
        clock: seconds.
    """

    def __init__(
        self,
        functions: Mapping[str, Mapping[int, Run]],
        calls: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._functions = {name: dict(each) for name, each in functions.items()}
        self._calls = calls
        self._clock = clock
        self.dropped: dict[str, str] = {}
        """Why a provider is not in all rounds."""

    def rounds(self) -> list[dict[str, dict[int, float]]]:
        """Seconds per call by provider and number of tokens, round by round.

        Those that raised or were hopeless are in no round; without the first there is none.
        """
        return self._rounds(_NUM_ROUNDS, drops_hopeless=True)

    def look(self) -> list[dict[str, dict[int, float]]]:
        """The same in a few rounds, for which nobody is too slow: they are to be shown only."""
        return self._rounds(_NUM_SHOWN, drops_hopeless=False)

    def _rounds(
        self, num_rounds: int, *, drops_hopeless: bool
    ) -> list[dict[str, dict[int, float]]]:
        first = next(iter(self._functions))
        trial = self._round(dict.fromkeys(self._calls, 1), 0)
        trial = self._round(dict.fromkeys(self._calls, 1), 0)  # the one before warmed up
        if first not in trial:
            return []
        if drops_hopeless:
            self._drop_hopeless(trial, first)
        loops = {count: _loops(trial[first][count], self._calls[count]) for count in self._calls}
        rounds = [self._round(loops, number) for number in range(num_rounds)]
        if first in self.dropped:
            return []
        return [{name: each[name] for name in self._functions} for each in rounds]

    def _drop_hopeless(self, trial: Mapping[str, Mapping[int, float]], first: str) -> None:
        for name, times in trial.items():
            ratio = min(times[count] / trial[first][count] for count in times)
            if name != first and ratio > _HOPELESS:
                self._drop(name, f"took {ratio:.1f} times as long as `{first}` in a first try")

    def _round(self, loops: Mapping[int, int], number: int) -> dict[str, dict[int, float]]:
        names = list(self._functions)
        start = number % len(names) if names else 0
        # Whoever comes first finds other things in the caches than those after it.
        return {
            name: times
            for name in (*names[start:], *names[:start])
            if (times := self._times(name, loops)) is not None
        }

    def _times(self, name: str, loops: Mapping[int, int]) -> dict[int, float] | None:
        try:
            return {
                count: self._time(function, loops[count]) / self._calls[count]
                for count, function in self._functions[name].items()
            }
        except Exception as error:
            self._drop(name, f"raised {type(error).__name__}: {error}")
            return None

    def _time(self, function: Run, loops: int) -> float:
        start = self._clock()
        for _ in range(loops):
            function()
        # A clock too coarse for the function must not make it free.
        return max((self._clock() - start) / loops, 1e-9)

    def _drop(self, name: str, reason: str) -> None:
        del self._functions[name]
        self.dropped[name] = reason


def _loops(seconds: float, calls: int) -> int:
    """Calls of a function that together take long enough for the clock."""
    return max(1, min(_MOST_LOOPS, round(_LOOP_SECONDS / (seconds * calls))))
