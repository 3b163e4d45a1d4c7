"""Percentiles and medians of the benches."""

import pytest

from tools.bench.quantiles import median, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 3.0), (99, 5.0), (100, 5.0), (30, 2.0)]
)
def test_percentile_is_the_nearest_sample(percent: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], percent) == expected


def test_percentile_of_many_is_not_the_worst() -> None:
    assert percentile(range(1000), 99) == 989


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None


def test_median_ignores_what_is_missing() -> None:
    assert median([None, 3.0, 1.0, None, 2.0]) == 2.0
    assert median([None]) is None
