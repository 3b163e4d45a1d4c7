import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_shim.sampling.truncation import truncate


def kept(
    weights: list[float], *, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> set[int]:
    row = np.array(weights, np.float32)
    before = row.copy()
    truncate(row, min_p=min_p, top_k=top_k, top_p=top_p)
    survivors = np.flatnonzero(row)
    assert (row[survivors] == before[survivors]).all()
    return set(survivors.tolist())


WEIGHTS = [0.05, 0.4, 0.1, 0.3, 0.15]


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.5}, {1, 3}),
        ({"min_p": 1.0}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.84}, {1, 3, 4}),
        ({"top_p": 0.96}, {0, 1, 2, 3, 4}),
        # top_p is of what top_k left: 0.4 of 0.7 is 57 %.
        ({"top_k": 2, "top_p": 0.5}, {1}),
        ({"top_k": 2, "top_p": 0.6}, {1, 3}),
        ({"min_p": 0.3, "top_p": 0.46}, {1}),
    ],
)
def test_cuts_keep_exactly_these_tokens(cuts: dict[str, float], expected: set[int]) -> None:
    assert kept(WEIGHTS, **cuts) == expected  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bad", [[np.nan] * 5, [0.1, np.nan, 0.2], [0.0] * 5])
@pytest.mark.parametrize(
    "cuts", [{"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"min_p": 0.1, "top_k": 1, "top_p": 0.9}]
)
def test_row_without_a_largest_weight_is_left_as_it_is(
    bad: list[float], cuts: dict[str, float]
) -> None:
    row = np.array(bad, np.float32)
    truncate(row, **{"min_p": 0.0, "top_k": 0, "top_p": 1.0, **cuts})  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(row, np.array(bad, np.float32))


def test_cuts_do_not_depend_on_the_scale_of_the_weights() -> None:
    scaled = [weight * 1000.0 for weight in WEIGHTS]
    assert kept(scaled, min_p=0.5) == kept(WEIGHTS, min_p=0.5)
    assert kept(scaled, top_p=0.84) == kept(WEIGHTS, top_p=0.84)


def test_ties_at_the_edge_are_all_kept() -> None:
    assert kept([0.2, 0.4, 0.2, 0.2], top_k=2) == {0, 1, 2, 3}
    assert kept([0.2, 0.4, 0.2, 0.2], top_p=0.5) == {0, 1, 2, 3}


@given(
    st.lists(st.floats(2.0**-20, 1.0, width=32), min_size=1, max_size=60),
    st.floats(0.01, 0.999),
    st.integers(0, 8),
)
def test_nucleus_is_the_smallest_set_with_enough_mass(
    weights: list[float], top_p: float, top_k: int
) -> None:
    row = np.array(weights, np.float32)
    survivors = kept(weights, top_p=top_p, top_k=top_k)
    pool = np.sort(row)[::-1].astype(np.float64)
    if top_k:
        pool = pool[pool >= pool[min(top_k, pool.size) - 1]]
    mass = np.cumsum(pool)
    needed = int(np.searchsorted(mass, top_p * mass[-1] * (1 - 1e-6))) + 1
    smallest = {i for i, weight in enumerate(row) if weight >= pool[needed - 1]}
    assert smallest <= survivors
    most = int(np.searchsorted(mass, top_p * mass[-1] * (1 + 1e-6))) + 1
    assert survivors <= {i for i, w in enumerate(row) if w >= pool[min(most, pool.size) - 1]}
