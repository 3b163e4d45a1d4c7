import math

import pytest
import torch

from ir_core.testing.comparison import (
    first_byte_difference,
    is_overlapping,
    share_differing,
    worst_difference,
)
from ir_core.tolerance import Tolerance

_TIGHT = Tolerance(1e-6, 1e-6)


def test_worst_difference_is_the_one_furthest_outside_its_own_tolerance() -> None:
    expected = torch.tensor([[1000.0, 1.0], [0.0, 5.0]])
    got = expected + torch.tensor([[0.5, 0.0], [0.1, 0.0]])
    difference = worst_difference(got, expected, Tolerance(0.01, 0.01))
    assert difference is not None
    assert difference.index == (1, 0)
    assert difference.num_outside == 1
    assert "got 0.1" in str(difference)
    assert "expected 0 " in str(difference)


def test_values_within_tolerance_do_not_differ() -> None:
    got = torch.tensor([1.0, 100.0])
    assert worst_difference(got, got + torch.tensor([0.01, 1.0]), Tolerance(0.01, 0.01)) is None


@pytest.mark.parametrize(
    ("got", "expected", "differs"),
    [
        (math.nan, math.nan, False),
        (math.inf, math.inf, False),
        (math.nan, 1.0, True),
        (1.0, math.nan, True),
        (math.inf, -math.inf, True),
        (math.inf, 1.0, True),
        (0.0, -0.0, False),
    ],
)
def test_what_is_not_finite_equals_only_itself(got: float, expected: float, differs: bool) -> None:
    found = worst_difference(torch.tensor([got]), torch.tensor([expected]), _TIGHT)
    assert (found is not None) is differs


def test_truth_is_rounded_to_the_dtype_that_is_judged() -> None:
    got = torch.tensor([math.inf], dtype=torch.float16)
    truth = torch.tensor([70000.0], dtype=torch.float64)
    assert worst_difference(got, truth, Tolerance(1e-3, 1e-3)) is None


def test_empty_tensors_do_not_differ() -> None:
    empty = torch.empty(0, 3)
    assert worst_difference(empty, empty, _TIGHT) is None
    assert first_byte_difference(empty, empty) is None
    assert share_differing(empty, empty) == 0


def test_bytes_tell_zeros_and_nans_apart() -> None:
    assert first_byte_difference(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0])) == (1,)
    nan = torch.tensor([[math.nan, 1.0]])
    assert first_byte_difference(nan, nan.clone()) is None
    assert first_byte_difference(nan, torch.tensor([[math.nan, 2.0]])) == (0, 1)
    assert first_byte_difference(torch.tensor([True]), torch.tensor([False])) == (0,)


def test_share_differing_counts_elements() -> None:
    got = torch.tensor([1.0, 2.0, math.nan, 4.0])
    assert share_differing(got, torch.tensor([1.0, 2.5, math.nan, 4.0])) == 0.25


def test_overlap_is_by_bytes_of_one_storage() -> None:
    base = torch.arange(10.0)
    assert is_overlapping(base[:6], base[5:])
    assert not is_overlapping(base[:5], base[5:])
    assert is_overlapping(base[::2], base.view(5, 2))
    assert not is_overlapping(base, base.clone())
    assert not is_overlapping(base[:0], base)
