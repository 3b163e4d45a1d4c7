"""Sizes are chosen so that padding is short, and those that no step has are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from ir_passes.capture.sizes import automatic_sizes, capture_sizes
from ir_passes.config import CompilationConfig
from ir_passes.errors import CaptureError


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2)),
        (7, (1, 2, 4)),
        (8, (1, 2, 4, 8)),
        (25, (1, 2, 4, 8, 16, 24)),
    ],
)
def test_automatic_sizes_are_dense_where_steps_are_small(
    largest: int, sizes: tuple[int, ...]
) -> None:
    assert automatic_sizes(largest) == sizes


def test_padding_of_automatic_sizes_is_at_most_seven_rows() -> None:
    sizes = automatic_sizes(512)
    for tokens in range(1, 513):
        assert min(size for size in sizes if size >= tokens) - tokens <= 7


def plan(limit: int = 32, largest: int = 512, **options: object) -> tuple[int, ...]:
    config = CompilationConfig.model_validate(options)
    return capture_sizes(config, limit=limit, largest=largest)


def test_bounds_of_the_engine_and_of_the_user_count() -> None:
    assert plan() == (1, 2, 4, 8, 16, 24, 32)
    assert plan(largest=9) == (1, 2, 4, 8)
    assert plan(largest=9, max_cudagraph_capture_size=16) == (1, 2, 4, 8, 16)
    assert plan(cudagraph_capture_sizes=[32, 3, 5]) == (3, 5, 32)
    assert plan(cudagraph_capture_sizes=[]) == ()


@pytest.mark.parametrize(
    ("option", "value"), [("cudagraph_capture_sizes", [4, 33]), ("max_cudagraph_capture_size", 33)]
)
def test_size_over_the_limit_names_option_size_and_limit(option: str, value: Any) -> None:
    with pytest.raises(CaptureError, match=rf"`{option}` names 33, .* at most 32 tokens"):
        plan(**{option: value})


def test_size_over_the_users_own_bound_names_both() -> None:
    with pytest.raises(CaptureError, match=r"names 16, which is over .*capture_size` \(8\)"):
        plan(cudagraph_capture_sizes=[4, 16], max_cudagraph_capture_size=8)


@pytest.mark.parametrize("sizes", [[0], [-1], [4, 4], [True]])
def test_impossible_sizes_are_refused_with_their_place(sizes: list[object]) -> None:
    with pytest.raises(ValidationError, match="cudagraph_capture_sizes"):
        plan(cudagraph_capture_sizes=sizes)
