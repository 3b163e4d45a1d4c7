"""What a tuned choice does to the calls of an op."""

import threading
from collections.abc import Callable

import pytest
import torch

from ir_core import IrOp, Registry
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
