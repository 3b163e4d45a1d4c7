"""Ranges cover every size once, and a guard is found broken for exactly the sizes that break it."""

import pytest
import sympy

from ir_passes.base import SizeRange
from ir_passes.compiling.sizes import broken_guards, plan_ranges, token_sizes
from ir_passes.shape_guard import ShapeGuard

T, R = sympy.symbols("T R", integer=True)
SYMBOLS = {"tokens": frozenset({T}), "requests": frozenset({R})}


@pytest.mark.parametrize(
    ("limit", "endpoints", "static", "ranges"),
    [
        (64, (), (), ["1..64"]),
        (None, (), (), ["1.."]),
        (64, (8, 32), (), ["1..8", "9..32", "33..64"]),
        (64, (64, 100), (), ["1..64"]),
        (64, (8,), (4, 1), ["1..1", "4..4", "1..8", "9..64"]),
        (8, (), (8, 9), ["8..8", "1..8"]),
        (None, (8,), (), ["1..8", "9.."]),
    ],
)
def test_ranges(
    limit: int | None, endpoints: tuple[int, ...], static: tuple[int, ...], ranges: list[str]
) -> None:
    assert [str(each) for each in plan_ranges(limit, endpoints, static)] == ranges


def guard(formula: sympy.Basic) -> ShapeGuard:
    return ShapeGuard(str(formula), "model.py:7", "trace", formula)


@pytest.mark.parametrize(
    ("formula", "sizes"),
    [
        (T >= 2, (1,)),
        (sympy.Ne(T, 1), (1,)),
        (sympy.Eq(T % 2, 0), (1, 3, 5, 7)),
        (T <= 6, (7, 8)),
        (T >= 1, ()),
        (T * 0 + R >= 1, ()),
    ],
)
def test_broken_sizes_of_one_label(formula: sympy.Basic, sizes: tuple[int, ...]) -> None:
    broken = broken_guards([guard(formula)], SYMBOLS, {"tokens": 8, "requests": 4})
    assert token_sizes(broken) == sizes


def test_guard_over_two_labels_is_tried_at_the_ends() -> None:
    broken = broken_guards([guard(T >= R)], SYMBOLS, {"tokens": 8, "requests": 4})
    assert {(each.sizes["tokens"], each.sizes["requests"]) for each in broken} >= {(1, 4), (2, 3)}
    assert all(each.sizes["tokens"] < each.sizes["requests"] for each in broken)


def test_message_names_guard_cause_line_and_sizes() -> None:
    (broken,) = broken_guards([guard(T >= 2)], SYMBOLS, {"tokens": 3})
    assert str(broken) == "`T >= 2` (trace, model.py:7) does not hold for tokens=1"


def test_sizes_without_a_limit_are_not_judged() -> None:
    assert broken_guards([guard(R >= 9)], SYMBOLS, {"tokens": 8}) == ()
    assert broken_guards([ShapeGuard("?", "", "")], SYMBOLS, {"tokens": 8}) == ()


def test_size_range_prints_its_ends() -> None:
    assert str(SizeRange(3, 3)) == "3..3"
