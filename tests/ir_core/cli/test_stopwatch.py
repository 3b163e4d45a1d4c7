from itertools import pairwise

from ir_core.cli.stopwatch import median_microseconds


def test_stopwatch_calls_every_function_in_turns() -> None:
    order: list[str] = []
    times = median_microseconds(
        {"first": lambda: order.append("first"), "second": lambda: order.append("second")}, 0.0
    )
    assert set(times) == {"first", "second"}
    assert all(value > 0 for value in times.values())
    changes = sum(one != other for one, other in pairwise(order))
    # Two calibrations, then at least five rounds of both.
    assert changes >= 10
