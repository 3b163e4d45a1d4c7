"""Regions of symbolic tensors are compared exactly where that can be proved, else they overlap."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ir_passes.region import covers, may_overlap

from .graphs import FakeInputs

Pair = Callable[[Tensor], tuple[Tensor, Tensor]]

APART: dict[str, Pair] = {
    "columns": lambda x: (x[:, :4], x[:, 4:]),
    "heads": lambda x: (x.view(-1, 4, 3)[:, :2], x.view(-1, 4, 3)[:, 2:]),
    "heads and columns": lambda x: (x.view(-1, 4, 3)[:, :2], x[:, 6:]),
    "every other column": lambda x: (x[:, ::2], x[:, 1::2]),
    "bytes of another dtype": lambda x: (x.view(torch.int16)[:, :8], x[:, 4:]),
    "an empty one": lambda x: (x[:, :0], x),
    "another storage": lambda x: (x, x.clone()),
    "static rows": lambda x: (x[0], x[1]),
    "transposed columns": lambda x: (x.t()[:4], x.t()[4:]),
}
MEETING: dict[str, Pair] = {
    "a tensor and its view": lambda x: (x, x.view(-1)),
    "columns with one in both": lambda x: (x[:, :5], x[:, 4:]),
    "one element": lambda x: (x[:, 3], x),
    "expanded": lambda x: (x[:, :1].expand(-1, 4), x[:, :1]),
    "rows that only the count tells apart": lambda x: (x[:4], x[4:]),
}


@pytest.mark.parametrize("pair", APART.values(), ids=APART.keys())
def test_regions_are_apart(pair: Pair) -> None:
    fakes = FakeInputs()
    with fakes.mode:
        first, second = pair(fakes.tensor(("T", 12)))
        assert not may_overlap(first, second)
        assert not may_overlap(second, first)


@pytest.mark.parametrize("pair", MEETING.values(), ids=MEETING.keys())
def test_regions_meet(pair: Pair) -> None:
    fakes = FakeInputs()
    with fakes.mode:
        first, second = pair(fakes.tensor(("T", 12)))
        assert may_overlap(first, second)
        assert may_overlap(second, first)


def test_static_regions_agree_with_their_elements() -> None:
    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x,
        lambda x: x[2:5],
        lambda x: x[5:],
        lambda x: x[:, 1:3],
        lambda x: x[::2, 3:],
        lambda x: x.t()[2],
        lambda x: x.as_strided((3, 2), (7, 2), 4),
    ]
    numbered = torch.arange(48).view(8, 6)
    fakes = FakeInputs()
    with fakes.mode:
        x = fakes.tensor((8, 6))
        fake_views = [view(x) for view in views]
    for first, fake_first in zip(views, fake_views, strict=True):
        for second, fake_second in zip(views, fake_views, strict=True):
            mine, theirs = (set(each(numbered).flatten().tolist()) for each in (first, second))
            assert may_overlap(fake_first, fake_second) is bool(mine & theirs)
            assert covers(fake_first, fake_second) is (theirs <= mine)


def test_cover_of_a_symbolic_region_is_proved_row_by_row() -> None:
    fakes = FakeInputs()
    with fakes.mode:
        x = fakes.tensor(("T", 12))
        assert covers(x[:, :4], x[:, :4])
        assert covers(x, x[:, :4])
        assert covers(x[:, 2:], x.view(-1, 4, 3)[:, 1:])
        assert not covers(x[:, :4], x)
        assert not covers(x[:4], x)
        assert not covers(x, x.clone())


def test_large_region_is_compared_without_its_bytes() -> None:
    fakes = FakeInputs()
    with fakes.mode:
        x = fakes.tensor((1 << 14, 1 << 14))
        assert may_overlap(x[:, :1], x[:, 1:])
