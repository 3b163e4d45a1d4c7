"""Use after donation: directly, through views and aliases; and what is no such use."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import DonationError, IrOp, Registry, check_donations
from ir_core.donation import Region

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _prefer_writer(writing: IrOp) -> None:
    writing.registry.priorities.set({"add_twice": "writer"})


USES: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: x + 1,
    "inplace": lambda x: x.add_(1),
    "view": lambda x: x.view(-1).sum(),
    "slice": lambda x: x[1:, :2].clone(),
    "transpose": lambda x: x.t() @ x,
    "strided": lambda x: x.as_strided((2,), (3,)).clone(),
    "item": lambda x: x[0, 0].item(),
    "out": lambda x: torch.add(torch.ones(3, 4), x, out=torch.empty(3, 4)),
    "list": lambda x: torch.cat([torch.ones(1, 4), x]),
    "copied-from": lambda x: torch.empty(3, 4).copy_(x),
    "keyword": lambda x: torch.clamp(torch.ones(3, 4), min=x),
    "bytes": lambda x: x.view(torch.uint8).sum(),
}


@pytest.mark.parametrize("use", USES)
def test_a_later_use_is_an_error_that_names_both_places(writing: IrOp, use: str) -> None:
    x, other = X.clone(), X.clone()
    with check_donations():
        writing.maybe_inplace(x, other)
        with pytest.raises(DonationError) as caught:
            USES[use](x)
    message = str(caught.value)
    assert "add_twice` took as `x`" in message
    assert message.count(f"{__file__}:") == 2
    assert "clone first" in message


def test_an_alias_that_was_made_before_is_found_too(writing: IrOp) -> None:
    base = torch.zeros(2, 12)
    view, alias, row = base[1].view(3, 4), base.detach(), base[0]
    with check_donations():
        writing.maybe_inplace(view, X.clone())
        assert row.sum() == 0
        with pytest.raises(DonationError, match="shape \\(2, 12\\)"):
            alias.sum()


def test_results_are_fresh_and_right(writing: IrOp) -> None:
    x, other = X.clone(), X.clone()
    with check_donations():
        once, twice = writing.maybe_inplace(x, other)
        assert torch.equal(once + 0, 2 * X)
        once, _ = writing.maybe_inplace(once, twice)
        assert torch.equal(once, 5 * X)
    assert torch.equal(x, X)


def test_donating_again_is_an_error(writing: IrOp) -> None:
    x = X.clone()
    with check_donations():
        writing.maybe_inplace(x, X.clone())
        with pytest.raises(DonationError, match=r"maybe_inplace` at .* whose memory"):
            writing.maybe_inplace(x, X.clone())


@pytest.mark.parametrize("alias", [lambda x: x, lambda x: x.view(3, 4), lambda x: x.detach()])
def test_one_tensor_as_two_activations_is_an_error(
    writing: IrOp, alias: Callable[[Tensor], Tensor]
) -> None:
    x = X.clone()
    with check_donations(), pytest.raises(DonationError, match="as `x` and as `x_other`"):
        writing.maybe_inplace(x, alias(x))


def test_disjoint_columns_of_one_buffer_are_independent(writing: IrOp) -> None:
    qkv = torch.arange(24.0).reshape(2, 12)
    query, key, value = qkv.split([4, 4, 4], dim=1)
    expected = value.clone()
    with check_donations():
        writing.maybe_inplace(query, key)
        assert torch.equal(value * 1, expected)
        assert torch.equal(qkv[:, 8:] * 1, expected)
        with pytest.raises(DonationError):
            qkv[:, 7:].sum()
        with pytest.raises(DonationError):
            qkv.sum()


def test_metadata_and_views_alone_are_no_use(writing: IrOp) -> None:
    x = X.clone()
    with check_donations():
        writing.maybe_inplace(x, X.clone())
        assert x.shape == (3, 4)
        assert torch.empty_like(x).shape == (3, 4)
        assert x.view(-1)[2:].shape == (10,)
        assert torch.zeros_like(x).sum() == 0


def test_a_buffer_that_is_filled_anew_can_be_used_again(writing: IrOp) -> None:
    buffer = X.clone()
    with check_donations():
        writing.maybe_inplace(buffer, X.clone())
        buffer[:1].copy_(X[:1])
        with pytest.raises(DonationError):
            buffer.sum()
        buffer.copy_(X)
        assert torch.equal(buffer * 1, X)
        writing.maybe_inplace(buffer, X.clone())
        buffer.view(-1).zero_()
        assert buffer.sum() == 0


def test_memory_that_was_freed_and_reused_is_no_alias(writing: IrOp) -> None:
    with check_donations() as check:
        for _ in range(50):
            writing.maybe_inplace(torch.ones(3, 4), torch.ones(3, 4))
            assert torch.ones(3, 4).sum() == 12
        assert len(check._donations) <= 2


def test_the_default_overload_donates_nothing(writing: IrOp) -> None:
    x = X.clone()
    with check_donations():
        writing(x, x)
        assert torch.equal(x * 1, X)


def test_checks_end_with_their_context(writing: IrOp) -> None:
    x, other = X.clone(), X.clone()
    with check_donations():
        writing.maybe_inplace(x, other)
    assert torch.equal(x + 0, X)
    once, _ = writing.maybe_inplace(x, other)
    assert once.data_ptr() == x.data_ptr()


def test_inference_mode_is_checked_too(writing: IrOp) -> None:
    with torch.inference_mode(), check_donations():
        x = X.clone()
        writing.maybe_inplace(x, X.clone())
        with pytest.raises(DonationError):
            x.mul(2)


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        (lambda b: b[:2], lambda b: b[2:], False),
        (lambda b: b[:2], lambda b: b[1:], True),
        (lambda b: b[:, :3], lambda b: b[:, 3:], False),
        (lambda b: b[:, :3], lambda b: b[:, 2:4], True),
        (lambda b: b[:, ::2], lambda b: b[:, 1::2], False),
        (lambda b: b.t()[:3], lambda b: b[:, 3:], False),
        (lambda b: b[::2], lambda b: b[1::2], False),
        (lambda b: b[1:1], lambda b: b, False),
        (lambda b: b[0].expand(5, 6), lambda b: b[1], False),
        (lambda b: b.view(torch.uint8)[:, :4], lambda b: b[:, 1:], False),
    ],
)
def test_regions_overlap_exactly(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], overlaps: bool
) -> None:
    buffer = torch.zeros(4, 6)
    first, second = Region.of(one(buffer)), Region.of(other(buffer))
    assert first.overlaps(second) is overlaps
    assert second.overlaps(first) is overlaps


def test_a_region_covers_what_lies_in_it() -> None:
    buffer = torch.zeros(4, 6)
    whole, column = Region.of(buffer), Region.of(buffer[:, 1])
    assert whole.covers(column)
    assert not column.covers(whole)
    assert not Region.of(buffer[1:1]).covers(column)


def test_regions_too_large_to_compare_count_as_overlapping() -> None:
    huge = torch.empty(1, device="meta").expand(1)
    wide = Region(0, 4, (2, 1), (1 << 30, 4))
    other = Region(4, 4, (2, 1), (1 << 30, 4))
    assert wide.overlaps(other)
    assert not wide.covers(other)
    assert Region.of(huge).end == 4


@pytest.mark.parametrize("alias", [lambda x: x[0], lambda x: x.view(-1)[3:7]])
def test_an_activation_that_is_another_argument_too_is_an_error(
    registry: Registry, alias: Callable[[Tensor], Tensor]
) -> None:
    @registry.register_op(allow_inplace=True)
    def shift(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x * weight + bias

    x, weight = X.clone(), torch.ones(4)
    with check_donations():
        with pytest.raises(DonationError, match="as `x` and as `bias`"):
            shift.maybe_inplace(x, weight, alias(x))
        assert torch.equal(shift.maybe_inplace(x, weight, weight) * 1, X + 1)
