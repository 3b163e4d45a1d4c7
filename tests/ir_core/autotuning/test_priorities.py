"""What a tuned choice does to the calls of an op."""

import threading
from collections.abc import Callable

import pytest
import torch

from ir_core import IrOp, Registry
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.signature import signature_of
from ir_core.autotuning.table import TunedChoice

WIDE, NARROW = torch.ones(2, 4), torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _providers(add_scale: Callable[..., None]) -> None:
    add_scale("one", 10.0)
    add_scale("two", 20.0)


def prefer(op: IrOp, x: torch.Tensor, provider: str) -> None:
    signature = signature_of(op, (x, None, 1.0, None))
    choice = TunedChoice(op.name, signature, "native", provider, (), ())
    op.registry.priorities.adopt_tuned([choice])


def used(op: IrOp, x: torch.Tensor) -> float:
    return float(op(x, None, 1.0)[0, 0])


def test_calls_of_one_op_differ_by_signature_every_time(scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    prefer(scale, NARROW, "two")
    seen = [used(scale, x) for x in (WIDE, NARROW, WIDE, NARROW, torch.ones(2, 5)) * 2]
    assert seen == [10, 20, 10, 20, 1] * 2


def test_one_choice_serves_every_batch(scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    assert [used(scale, torch.ones(n, 4)) for n in (1, 2, 9)] == [10, 10, 10]


def test_a_choice_replaces_what_was_remembered(scale: IrOp) -> None:
    assert used(scale, WIDE) == 1
    prefer(scale, WIDE, "one")
    assert used(scale, WIDE) == 10


def test_a_choice_is_for_good(scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    prefer(scale, WIDE, "two")
    assert used(scale, WIDE) == 10


def test_a_choice_holds_in_every_thread(scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    seen: list[float] = []
    thread = threading.Thread(target=lambda: seen.append(used(scale, WIDE)))
    thread.start()
    thread.join(10)
    assert seen == [10]


def test_the_user_comes_first_and_the_priority_after(registry: Registry, scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    with registry.priorities.override({"scale": "two"}):
        entries = registry.priorities.resolve(scale, (WIDE, None, 1.0, None)).entries
        assert used(scale, WIDE) == 20
    assert [(each.provider, each.source) for each in entries] == [
        ("two", "user"),
        ("one", "autotuned"),
        ("native", "fallback"),
    ]


def test_a_preferred_provider_can_still_refuse(scale: IrOp, add_scale: Callable[..., None]) -> None:
    add_scale("picky", 30.0, supports_args=lambda x, weight, factor, width=None: "not today")
    prefer(scale, WIDE, "picky")
    selection = scale.select(WIDE, None, 1.0)
    assert selection.provider == "native"
    assert [each.reason for each in selection.rejections] == ["not today"]


def test_without_values_the_priority_is_the_untuned_one(registry: Registry, scale: IrOp) -> None:
    prefer(scale, WIDE, "one")
    assert registry.candidates(scale) == ("native",)
    assert registry.candidates(scale, (WIDE, None, 1.0, None)) == ("one", "native")


def test_tuned_choices_need_no_weights_packed_otherwise(project: IrOp) -> None:
    call = (torch.ones(2, 4), torch.ones(3, 4))
    signature = signature_of(project, (*call, None, "plain"))
    choice = TunedChoice("project", signature, "native", "native", (), ())
    project.registry.priorities.adopt_tuned([choice])
    assert project.choose_layout(*call).layout == "plain"


def prefer_by_rows(op: IrOp, x: torch.Tensor, *later: tuple[int, str], first: str = "one") -> None:
    """`one` for few rows, and others from so many rows on."""
    signature = signature_of(op, (x, None, 1.0, None))
    ranges = tuple(LaterRange(*each) for each in later)
    choice = TunedChoice(op.name, signature, "native", first, (), (), later=ranges)
    op.registry.priorities.adopt_tuned([choice])


def by_rows(op: IrOp, *counts: int, width: int = 4) -> list[float]:
    return [used(op, torch.ones(count, width)) for count in counts]


def test_calls_are_told_apart_by_their_rows_every_time(scale: IrOp) -> None:
    prefer_by_rows(scale, WIDE, (9, "two"))
    counts = (1, 8, 9, 100, 8, 9, 1)
    assert by_rows(scale, *counts) == [10, 10, 20, 20, 10, 20, 10]
    assert [scale.select(torch.ones(n, 4), None, 1.0).provider for n in (8, 9)] == ["one", "two"]
    through_torch = [float(scale.torch_op(torch.ones(n, 4), None, 1.0)[0, 0]) for n in counts]
    assert through_torch == by_rows(scale, *counts)


def test_several_ends_are_told_apart(scale: IrOp) -> None:
    prefer_by_rows(scale, WIDE, (2, "two"), (9, "native"), (65, "one"))
    assert by_rows(scale, *(1, 2, 8, 9, 64, 65) * 2) == [10, 20, 20, 1, 1, 10] * 2


def test_ends_of_one_signature_are_none_of_anothers(scale: IrOp) -> None:
    prefer_by_rows(scale, WIDE, (9, "two"))
    prefer_by_rows(scale, NARROW, (5, "native"))
    for _ in range(2):
        assert by_rows(scale, 4, 5, 8, 9) == [10, 10, 10, 20]
        assert by_rows(scale, 4, 5, 8, 9, width=3) == [10, 1, 1, 1]
        assert by_rows(scale, 4, 9, width=5) == [1, 1]


def test_an_empty_call_is_one_of_few_rows(scale: IrOp) -> None:
    prefer_by_rows(scale, WIDE, (9, "two"))
    assert scale.select(torch.ones(0, 4), None, 1.0).provider == "one"


def test_what_has_no_rows_is_called_as_ever(registry: Registry, scale: IrOp) -> None:
    prefer_by_rows(scale, WIDE, (9, "two"))
    assert by_rows(scale, 9, 1) == [20, 10]
    with registry.priorities.override({"scale": "one"}):
        assert [float(scale(torch.ones(()), None, 2.0)) for _ in range(2)] == [10, 10]


def test_in_place_calls_are_told_apart_by_their_rows(writing: IrOp) -> None:
    call = (torch.ones(2, 4), torch.ones(2, 4), 1.0)
    later = (LaterRange(3, "writer"),)
    signature = signature_of(writing, call)
    choice = TunedChoice("add_twice", signature, "native", "native", (), (), later=later)
    writing.registry.priorities.adopt_tuned([choice])
    for count, writes in ((2, False), (3, True), (2, False)):
        x = torch.ones(count, 4)
        result, _ = writing.maybe_inplace(x, torch.ones(count, 4))
        assert (result is x) is writes


def test_only_ops_with_ranges_are_remembered_by_rows(scale: IrOp) -> None:
    prefer(scale, NARROW, "one")
    used(scale, NARROW)
    assert "shape[0]" not in str(scale.functional_lookup._key_parts())
    prefer_by_rows(scale, WIDE, (9, "two"))
    used(scale, NARROW)
    assert "(x.shape[0] > 8)" in scale.functional_lookup._key_parts()


def test_batch_invariance_follows_no_ranges(registry: Registry, scale: IrOp) -> None:
    for name in ("three", "four"):

        @scale.register_impl(name, batch_invariant=True)
        def implementation(
            x: torch.Tensor, weight: torch.Tensor | None, factor: float, width: int | None = None
        ) -> torch.Tensor:
            return torch.full_like(x, 30.0)

    prefer_by_rows(scale, WIDE, (9, "four"), first="three")
    registry.set_batch_invariant(True)
    registry.priorities.set({"scale": "four"})
    registry.priorities.set({})
    chosen = {scale.select(torch.ones(n, 4), None, 1.0).provider for n in (1, 8, 9, 100)}
    assert len(chosen) == 1
    assert registry.priorities.row_ends() == ()


def test_a_priority_of_the_users_is_followed_whatever_the_rows(
    registry: Registry, scale: IrOp
) -> None:
    prefer_by_rows(scale, WIDE, (9, "two"))
    with registry.priorities.override({"scale": "native"}):
        assert by_rows(scale, 1, 9) == [1, 1]
    assert by_rows(scale, 1, 9) == [10, 20]
