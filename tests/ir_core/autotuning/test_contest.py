from collections.abc import Callable

import pytest

from ir_core.autotuning.contest import Contest


class Clock:
    """Seconds that functions spend."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def run(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.ran.append(name)
            self.now += seconds

        return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


def failing(after: int) -> Callable[[], None]:
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        if len(calls) > after:
            raise RuntimeError("no such unit")

    return run


def test_times_are_per_call_of_the_op(clock: Clock) -> None:
    functions = {"a": {1: clock.run("a", 4e-3), 8: clock.run("a", 1.2e-2)}}
    rounds = Contest(functions, {1: 2, 8: 4}, clock).rounds()
    assert rounds[0]["a"] == {1: pytest.approx(2e-3), 8: pytest.approx(3e-3)}


def test_providers_take_turns_and_each_is_first_in_some(clock: Clock) -> None:
    functions = {name: {1: clock.run(name, 1e-3)} for name in "abc"}
    Contest(functions, {1: 1}, clock).rounds()
    turns = ["".join(clock.ran[i : i + 3]) for i in range(6, len(clock.ran), 3)]
    assert turns == ["abc", "bca", "cab"] * 3


def test_short_functions_are_repeated_for_the_clock(clock: Clock) -> None:
    Contest({"a": {1: clock.run("a", 1e-6)}}, {1: 1}, clock).rounds()
    assert len(clock.ran) == 2 + 9 * 200


def test_a_function_below_the_resolution_of_the_clock_costs_something(clock: Clock) -> None:
    rounds = Contest({"a": {1: clock.run("a", 0.0)}}, {1: 1}, clock).rounds()
    assert rounds[0]["a"][1] > 0


@pytest.mark.parametrize("after", [0, 1, 4], ids=["at once", "in the trial", "in a later round"])
def test_one_that_raises_is_out_with_its_error(clock: Clock, after: int) -> None:
    functions = {"a": {1: clock.run("a", 1e-3)}, "b": {1: failing(after)}}
    contest = Contest(functions, {1: 1}, clock)
    rounds = contest.rounds()
    assert [list(each) for each in rounds] == [["a"]] * 9
    assert contest.dropped == {"b": "raised RuntimeError: no such unit"}


@pytest.mark.parametrize("after", [0, 4])
def test_where_the_first_raises_nothing_is_decided(clock: Clock, after: int) -> None:
    functions = {"a": {1: failing(after)}, "b": {1: clock.run("b", 1e-3)}}
    contest = Contest(functions, {1: 1}, clock)
    assert contest.rounds() == []
    assert "a" in contest.dropped


def test_a_hopeless_one_is_out_after_the_trial(clock: Clock) -> None:
    functions = {"a": {1: clock.run("a", 1e-3)}, "b": {1: clock.run("b", 1e-2)}}
    contest = Contest(functions, {1: 1}, clock)
    assert "b" not in contest.rounds()[0]
    assert contest.dropped == {"b": "took 10.0 times as long as `a` in a first try"}
    assert clock.ran.count("b") == 2


def test_one_that_is_slow_for_some_counts_only_is_not_hopeless(clock: Clock) -> None:
    functions = {
        "a": {1: clock.run("a", 1e-3), 8: clock.run("a", 1e-3)},
        "b": {1: clock.run("b", 5e-4), 8: clock.run("b", 1e-2)},
    }
    assert "b" in Contest(functions, {1: 1, 8: 1}, clock).rounds()[0]


def test_an_interrupt_is_not_swallowed(clock: Clock) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Contest({"a": {1: interrupted}}, {1: 1}, clock).rounds()


def test_a_look_drops_nobody_for_being_slow(clock: Clock) -> None:
    functions = {name: {1: clock.run(name, seconds)} for name, seconds in (("a", 1e-3), ("b", 1.0))}
    contest = Contest(functions, {1: 1}, clock)
    assert [each["b"][1] for each in contest.look()] == [pytest.approx(1.0)] * 3
    assert contest.dropped == {}
