from collections.abc import Mapping
from typing import Any

import pytest

from ir_core.autotuning.decision import Round, decide, decide_by_range, relative_time


def rounds(**times: list[float]) -> list[dict[str, dict[int, float]]]:
    """Rounds of one token count, from each provider's times."""
    columns = zip(*times.values(), strict=True)
    return [{name: {1: t} for name, t in zip(times, row, strict=True)} for row in columns]


def winner(**times: list[float]) -> str:
    return decide(list(times), rounds(**times), {1: 1.0})


def test_a_clearly_faster_provider_wins() -> None:
    assert winner(first=[10.0] * 4, other=[8.0] * 4) == "other"


@pytest.mark.parametrize("time", [10.0, 9.6, 9.51])
def test_what_is_equal_within_the_margin_keeps_the_order(time: float) -> None:
    assert winner(first=[10.0] * 4, other=[time] * 4) == "first"


def test_a_gain_just_above_the_margin_counts() -> None:
    assert winner(first=[10.0] * 4, other=[9.4] * 4) == "other"


def test_noise_in_a_few_rounds_decides_nothing() -> None:
    assert winner(first=[10.0] * 8, other=[5.0, 5.0, 5.0, *[10.0] * 5]) == "first"
    assert winner(first=[10.0] * 8, other=[30.0, 30.0, *[8.0] * 6]) == "other"


def test_a_gain_in_the_median_alone_is_not_most_rounds() -> None:
    assert winner(first=[10.0] * 7, other=[*[9.0] * 4, *[10.0] * 3]) == "first"


def test_a_slow_machine_slows_both_and_changes_nothing() -> None:
    assert winner(first=[10.0, 50.0, 10.0, 90.0], other=[8.0, 40.0, 8.0, 72.0]) == "other"


def test_of_two_that_are_faster_the_earlier_stays_unless_beaten_too() -> None:
    assert winner(first=[10.0] * 4, second=[8.0] * 4, third=[7.8] * 4) == "second"
    assert winner(first=[10.0] * 4, second=[8.0] * 4, third=[7.0] * 4) == "third"


def test_the_last_may_beat_the_first_where_the_second_does_not() -> None:
    assert winner(first=[10.0] * 4, second=[9.7] * 4, third=[9.3] * 4) == "third"


def test_a_single_provider_stays() -> None:
    assert winner(first=[10.0]) == "first"


def test_token_counts_weigh_by_their_weight_and_not_by_their_time() -> None:
    turn = {"a": {1: 1.0, 64: 100.0}, "b": {1: 0.5, 64: 120.0}}
    assert decide(["a", "b"], [turn] * 4, {1: 4.0, 64: 1.0}) == "b"
    assert decide(["a", "b"], [turn] * 4, {1: 1.0, 64: 8.0}) == "a"


def test_relative_time_is_a_weighted_geometric_mean() -> None:
    turn = {"a": {1: 1.0, 8: 1.0}, "b": {1: 4.0, 8: 0.5}}
    assert relative_time(turn, "b", "a", {1: 1.0, 8: 2.0}) == pytest.approx(1.0)


WEIGHTS = {1: 4.0, 8: 2.0, 64: 1.0}


def by_range(
    *ends: int, weights: Mapping[int, float] = WEIGHTS, **times: tuple[float, ...]
) -> list[tuple[tuple[int, ...], str]]:
    """Counts and provider of each range, where each provider takes such times in every round."""
    turn = {name: dict(zip(weights, each, strict=True)) for name, each in times.items()}
    verdicts = decide_by_range(list(times), [turn] * 4, weights, ends)
    return [(each.counts, each.provider) for each in verdicts]


def test_each_range_has_its_own_winner() -> None:
    found = by_range(1, 8, a=(10, 10, 10), b=(5, 5, 20))
    assert found == [((1, 8), "b"), ((64,), "a")]


def test_three_ranges_may_have_three_winners() -> None:
    found = by_range(1, 8, a=(10, 10, 10), b=(5, 20, 20), c=(20, 5, 20))
    assert found == [((1,), "b"), ((8,), "c"), ((64,), "a")]


def test_neighbours_with_one_winner_are_one_range() -> None:
    assert by_range(1, 8, a=(10, 10, 10), b=(5, 6, 7)) == [((1, 8, 64), "b")]


def test_a_winner_may_come_back() -> None:
    found = by_range(1, 8, a=(10, 10, 10), b=(20, 5, 20))
    assert found == [((1,), "a"), ((8,), "b"), ((64,), "a")]


@pytest.mark.parametrize("time", [10.0, 9.8, 10.3])
def test_a_tie_on_one_side_makes_no_boundary(time: float) -> None:
    """`a` would stay for 64 tokens alone, but is not faster there beyond doubt."""
    assert by_range(1, 8, a=(10, 10, 10), b=(5, 5, time)) == [((1, 8, 64), "b")]


def test_sides_without_a_boundary_are_decided_by_their_mean() -> None:
    small = {1: 0.1, 64: 4.0}
    found = by_range(1, weights=small, a=(10, 10), b=(9, 10))
    assert found == [((1, 64), "a")]


def test_a_difference_in_too_few_rounds_makes_no_boundary() -> None:
    usual = {"a": {1: 10.0, 64: 10.0}, "b": {1: 5.0, 64: 10.0}}
    lucky = {"a": {1: 10.0, 64: 10.0}, "b": {1: 5.0, 64: 20.0}}
    verdicts = decide_by_range(["a", "b"], [usual, usual, lucky, lucky], {1: 4, 64: 1}, [1])
    assert [each.provider for each in verdicts] == ["b"]
    verdicts = decide_by_range(["a", "b"], [usual, lucky, lucky, lucky], {1: 4, 64: 1}, [1])
    assert [each.provider for each in verdicts] == ["b", "a"]


def test_no_range_ends_where_it_may_not() -> None:
    times: Any = {"a": (10.0, 10.0, 10.0), "b": (5.0, 20.0, 20.0)}
    assert by_range(1, 8, **times) == [((1,), "b"), ((8, 64), "a")]
    assert by_range(8, **times) == [((1, 8), "b"), ((64,), "a")]
    assert by_range(**times) == [((1, 8, 64), "b")]


def test_without_ends_the_choice_is_that_of_the_mean() -> None:
    turn: Round = {"a": {1: 1.0, 64: 100.0}, "b": {1: 0.5, 64: 120.0}}
    for weights in ({1: 4.0, 64: 1.0}, {1: 1.0, 64: 8.0}):
        (verdict,) = decide_by_range(["a", "b"], [turn] * 4, weights, ())
        assert verdict.provider == decide(["a", "b"], [turn] * 4, weights)
