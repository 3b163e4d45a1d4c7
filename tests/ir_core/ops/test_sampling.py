"""What `sample_tokens` means, on rows small enough to know the answer."""

import math

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.ops.sampling import NO_TOKEN, NUM_DRAWS, uniform


def sample(
    x: Tensor,
    keys: list[int],
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[int]:
    """The tokens of the one row, or of all rows, for these keys."""
    x = x.expand(max(len(x), len(keys)), -1)
    rows = len(x)
    return ir.ops.sample_tokens.native(
        x,
        torch.full((rows,), temperature),
        torch.full((rows,), min_p),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.tensor(keys).expand(rows),
        torch.zeros(rows, dtype=torch.int64),
    ).tolist()


def key_of(*draws: float) -> int:
    """A key whose first draws, at position 0, are near these."""
    for key in range(1_000_000):
        if all(abs(uniform(key, 0, at) - draw) < 0.009 for at, draw in enumerate(draws)):
            return key
    raise AssertionError("no such key")


# Probabilities of tenths, so that quantiles can be read off: 1, 4, 0, 3, 2.
ROW = torch.tensor([[0.1, 0.4, 0.0, 0.3, 0.2]]).log()


@pytest.mark.parametrize(
    ("draw", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 3), (0.81, 4), (0.999, 4)]
)
def test_draw_gives_the_token_at_its_quantile(draw: float, token: int) -> None:
    assert sample(ROW, [key_of(draw)]) == [token]


def test_draws_are_those_of_splitmix64() -> None:
    # The third output of the generator with seed 5 is the draw at position 2.
    state, outputs = 5, list[int]()
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ (z >> 31))
    assert uniform(5, 2, 0) == (outputs[2] >> 11) / 2**53
    assert uniform(5, 2, 1) == uniform(5, 2 + 2**40, 0)
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def test_temperature_zero_takes_the_first_largest() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [-5.0, -7.0, -5.0]])
    assert sample(x, [3], temperature=0.0, top_k=1, top_p=0.1) == [1, 0]


def test_temperature_flattens_and_sharpens() -> None:
    # At temperature 1/2 the probabilities are squared: 1, 16, 0, 9, 4 of 30.
    assert sample(ROW, [key_of(0.58)], temperature=0.5) == [3]
    assert sample(ROW, [key_of(0.55)], temperature=0.5) == [1]
    assert sample(ROW, [key_of(0.85)], temperature=1e4) == [4]


@pytest.mark.parametrize(
    ("cuts", "tokens"),
    [
        ({"min_p": 0.5}, {1, 3, 4}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 4}, {0, 1, 3, 4}),
        ({"top_k": 99}, {0, 1, 3, 4}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.71}, {1, 3, 4}),
        # Each of what is left: 4 of the 7 tenths that top_k leaves are 57 %.
        ({"top_k": 2, "top_p": 0.56}, {1}),
        ({"top_k": 2, "top_p": 0.58}, {1, 3}),
        ({"min_p": 0.7, "top_p": 0.56}, {1}),
    ],
)
def test_cuts_leave_exactly_these_tokens(cuts: dict[str, float], tokens: set[int]) -> None:
    drawn = set(sample(ROW, list(range(300)), **cuts))  # pyright: ignore[reportArgumentType]
    assert drawn == tokens


def test_draw_outside_of_the_nucleus_is_followed_by_the_next() -> None:
    # The nucleus is tokens 1 and 3; 0.05 and 0.9 lie outside of it.
    assert sample(ROW, [key_of(0.05, 0.9, 0.3)], top_p=0.6) == [1]
    assert sample(ROW, [key_of(0.05, 0.65, 0.3)], top_p=0.6) == [3]


def test_last_draw_is_for_the_nucleus_alone() -> None:
    # Tokens 0 and 1 are the nucleus; their eleven hundredths are missed by most draws.
    x = torch.tensor([[0.06, 0.05, *[0.01] * 89]]).log()
    missing = [
        key
        for key in range(400)
        if all(uniform(key, 0, number) > 0.12 for number in range(NUM_DRAWS - 1))
    ]
    last = [uniform(key, 0, NUM_DRAWS - 1) for key in missing]
    assert min(last) < 6 / 11 < max(last)
    assert sample(x, missing, top_p=0.1) == [int(draw > 6 / 11) for draw in last]


def test_tokens_as_likely_as_the_last_one_kept_are_kept() -> None:
    equal = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    drawn = set(sample(equal, list(range(40)), top_k=2))
    assert drawn == {0, 1, 2, 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_row_without_a_usable_maximum_gives_no_token(bad: float) -> None:
    x = torch.zeros(3, 4)
    x[1, 2] = bad
    assert sample(x, [key_of(0.3)]) == [1, NO_TOKEN, 1]
    assert sample(x, [0], temperature=0.0) == [0, NO_TOKEN, 0]
    assert sample(torch.full((1, 4), -math.inf), [0]) == [NO_TOKEN]


def test_masked_tokens_are_never_drawn() -> None:
    x = torch.full((1, 9), -math.inf)
    x[0, 7] = -3.0
    assert set(sample(x, list(range(20)), top_k=3)) == {7}


def test_wrong_shapes_are_named() -> None:
    good = [torch.zeros(2, 3), *(torch.zeros(2) for _ in range(6))]
    for at, shape, words in (
        (0, (2, 0), "`x` must be"),
        (0, (2,), "`x` must be"),
        (3, (3,), "`top_k` must have an element for each row, 2; its shape is"),
        (6, (2, 1), "`position` must have an element for each row"),
    ):
        wrong = [*good]
        wrong[at] = torch.zeros(shape)
        with pytest.raises(ir.ArgumentError, match=words):
            ir.ops.sample_tokens.native(*wrong)
