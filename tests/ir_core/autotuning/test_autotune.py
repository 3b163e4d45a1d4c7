from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import priced_ops
import pytest
import torch
from priced_ops import CLOCK, priced_registry, priced_step
from torch import Tensor

from ir_core import Registry, TuningTimeError
from ir_core.autotuning.autotune import autotune
from ir_core.autotuning.choice_file import FORMAT, ChoiceFile
from ir_core.autotuning.plan import TuningPlan, TuningReport

WEIGHTS = {1: 4.0, 8: 1.0}
TIMED = TuningPlan(WEIGHTS, is_fused=False, is_timed=True)
CACHED = TuningPlan(WEIGHTS, is_fused=False, is_timed=False)
MACHINE = {"cpu": "A", "threads": "4"}


@pytest.fixture
def file(tmp_path: Path) -> ChoiceFile:
    return ChoiceFile(tmp_path, MACHINE)


def start(
    plan: TuningPlan = TIMED,
    file: ChoiceFile | None = None,
    registry: Registry | None = None,
    width: int = 4,
    **prices: Any,
) -> tuple[Registry, TuningReport]:
    """One start of a model; `rival` is the fastest unless prices say otherwise."""
    registry = registry or priced_registry()
    CLOCK.reset(**{"steady": 4e-5, "rival": 2e-5, "native": 8e-5, **prices})
    step = priced_step(registry["scale"], width)
    return registry, autotune(registry, step, plan, file, clock=CLOCK)


def used(registry: Registry, num_tokens: int = 3, width: int = 4) -> str:
    x, weight = torch.ones(num_tokens, width), torch.ones(width)
    return registry["scale"].select(x, weight).provider


def test_calls_get_the_fastest_from_then_on() -> None:
    registry, report = start()
    assert [used(registry, each) for each in (1, 8, 100)] == ["rival"] * 3
    assert report.num_timed == 1
    assert [each.provider for each in report.changed] == ["rival"]


def test_calls_of_other_sizes_keep_the_priority() -> None:
    registry, _ = start()
    assert used(registry, width=5) == "steady"


def test_two_runs_give_the_same_table() -> None:
    (_, first), (_, second) = start(), start()
    assert first.choices == second.choices


def test_a_later_start_loads_what_was_timed_and_times_nothing(file: ChoiceFile) -> None:
    _, first = start(file=file)
    registry, second = start(CACHED, file, steady=1e-6)
    assert used(registry) == "rival"
    assert second.choices == first.choices
    assert second.num_timed == 0
    assert second.remarks == ()
    # The two layers of one recorded step, and nothing else.
    assert CLOCK.num_calls == 2


def test_timing_is_not_repeated_where_it_may_be(file: ChoiceFile) -> None:
    start(file=file)
    _, report = start(TIMED, file, steady=1e-6)
    assert report.num_timed == 0
    assert [each.provider for each in report.changed] == ["rival"]


def test_without_a_stored_choice_cached_keeps_the_priority_and_says_so(file: ChoiceFile) -> None:
    registry, report = start(CACHED, file)
    assert used(registry) == "steady"
    assert report.choices == ()
    assert report.remarks[0] == "nothing is stored for this machine"
    assert report.remarks[1].startswith("scale: no choice is stored for x: float32[*, 4]")


def test_what_may_not_be_written_is_not(file: ChoiceFile) -> None:
    plan = TuningPlan(WEIGHTS, is_fused=False, is_timed=True, is_stored=False)
    registry, _ = start(plan, file)
    assert used(registry) == "rival"
    assert not file.path.exists()


def test_a_choice_of_another_machine_is_not_used(file: ChoiceFile, tmp_path: Path) -> None:
    start(file=file)
    registry, report = start(CACHED, ChoiceFile(tmp_path, {**MACHINE, "cpu": "B"}))
    assert used(registry) == "steady"
    assert "for another, cpu is B, and was A" in report.remarks[0]


def slower(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
    """Another implementation under the same name."""
    return x * weight * factor


def other_rival() -> Registry:
    registry = Registry(platform=priced_ops.SteadyFirst())
    op = registry.register_op(priced_ops.scale)
    op.register_impl("steady")(priced_ops.steady)
    op.register_impl("rival")(slower)
    return registry


def gone_rival() -> Registry:
    return priced_registry(supported=(False, "no such unit"))


def invariant() -> Registry:
    registry = priced_registry(batch_invariant=True)
    registry.set_batch_invariant(True)
    return registry


@pytest.mark.parametrize(
    ("make", "changed"),
    [
        (other_rival, "provider `rival` is available ("),
        (gone_rival, "provider `rival` is no such unit, and was "),
        (invariant, "batch invariance is on, and was off"),
    ],
)
def test_a_choice_whose_grounds_changed_is_not_used(
    file: ChoiceFile, make: Callable[[], Registry], changed: str
) -> None:
    start(file=file)
    registry, report = start(CACHED, file, make())
    assert report.choices == ()
    assert not registry.priorities.tuned
    (remark,) = report.remarks
    assert remark.startswith(f"scale: the stored choice is not used: {changed}")


def test_a_choice_whose_files_changed_is_not_used(file: ChoiceFile) -> None:
    start(file=file)
    (stored,) = file.load().choices
    name = next(each for each in stored.grounds.files if each.startswith("module "))
    grounds = replace(stored.grounds, files={**stored.grounds.files, name: "0" * 64})
    file.save([replace(stored, grounds=grounds)])
    registry, report = start(CACHED, file)
    assert used(registry) == "steady"
    assert report.remarks == (f"scale: the stored choice is not used: {name} has changed",)


def test_a_choice_for_other_token_counts_or_another_way_to_run_is_not_used(
    file: ChoiceFile,
) -> None:
    start(file=file)
    for plan, changed in (
        (TuningPlan({1: 1.0}, is_fused=False, is_timed=False), "token counts is 1 x 1, and was"),
        (TuningPlan(WEIGHTS, is_fused=True, is_timed=False), "execution is compiled, and was"),
    ):
        _, report = start(plan, file)
        assert changed in report.remarks[0]


def test_a_stale_choice_is_timed_anew_and_replaced(file: ChoiceFile) -> None:
    start(file=file)
    _, report = start(TIMED, file, other_rival())
    assert report.num_timed == 1
    _, report = start(CACHED, file, other_rival())
    assert report.remarks == ()


def test_a_damaged_file_costs_a_remark_and_new_timing(file: ChoiceFile) -> None:
    start(file=file)
    file.path.write_text("{")
    _, report = start(TIMED, file)
    assert report.num_timed == 1
    assert "is not used" in report.remarks[0]
    assert len(file.load().choices) == 1


def test_a_file_that_cannot_be_written_costs_a_remark(tmp_path: Path) -> None:
    (tmp_path / f"v{FORMAT}").write_text("in the way")
    registry, report = start(TIMED, ChoiceFile(tmp_path, MACHINE))
    assert used(registry) == "rival"
    assert "cannot be stored" in report.remarks[-1]


def test_an_op_with_a_priority_of_the_users_is_left_alone() -> None:
    registry = priced_registry()
    registry.priorities.set({"scale": "native"})
    _, report = start(registry=registry)
    assert used(registry) == "native"
    assert report.remarks == ("scale: not tuned, since a priority is given for it",)
    assert not registry.priorities.tuned


def test_a_choice_in_force_is_not_made_again() -> None:
    registry, first = start()
    _, second = start(registry=registry, steady=1e-6)
    assert used(registry) == "rival"
    assert second.num_timed == 0
    assert second.choices == first.choices


def test_a_second_model_adds_its_own_calls() -> None:
    registry, _ = start()
    _, report = start(registry=registry, width=5, steady=1e-6)
    assert [each.is_changed for each in report.choices] == [False]
    assert (used(registry), used(registry, width=5)) == ("rival", "steady")


def test_a_candidate_that_raises_ends_no_start() -> None:
    def broken(count: int) -> float:
        raise RuntimeError("no such unit")

    registry, report = start(rival=broken)
    assert used(registry) == "steady"
    assert [each.reason for each in report.choices[0].rejections] == [
        "raised RuntimeError: no such unit"
    ]


def test_a_choice_without_a_fingerprint_is_used_and_not_stored(file: ChoiceFile) -> None:
    registry = priced_registry()
    number = object()

    def closing(x: Tensor, weight: Tensor, factor: float = 1.0) -> Tensor:
        assert number is not None
        return x * weight

    registry["scale"].register_impl("closing")(closing)
    _, report = start(file=file, registry=registry)
    assert report.num_timed == 1
    assert report.remarks[-1].startswith("scale: tuned anew at each start: provider `closing`")
    assert file.load().choices == ()


@dataclass(frozen=True)
class Described:
    """A compiler that never has time."""

    description: str

    def compile(self, *_: Any) -> Any:
        raise TuningTimeError("the time is up")


def test_a_choice_for_code_of_another_compiler_is_not_used(file: ChoiceFile) -> None:
    start(replace(TIMED, compiler=Described("A 1")), file)
    _, report = start(replace(CACHED, compiler=Described("A 1")), file)
    assert report.remarks == ()
    _, report = start(replace(CACHED, compiler=Described("A 2")), file)
    assert report.remarks == ("scale: the stored choice is not used: compiler is A 2, and was A 1",)


def test_what_is_left_out_is_a_remark() -> None:
    registry = priced_registry()

    @registry.register_op
    def meet(x: Tensor, group: str = "tp") -> Tensor:
        return x.clone()

    def step(count: int) -> None:
        meet(torch.ones(count, 2))

    report = autotune(registry, step, TIMED)
    assert report.choices == ()
    assert report.remarks == (
        "meet: not tuned: the ranks compute it together, and one that repeats a call would wait "
        "for the rest",
    )


def test_what_there_was_no_time_for_is_timed_at_the_next_start(file: ChoiceFile) -> None:
    plan = replace(TIMED, is_fused=True, compiler=Described("A 1"))
    registry, report = start(plan, file)
    assert used(registry) == "steady"
    assert report.remarks[-1] == "scale: not tuned: the time is up"
    assert file.load().choices == ()


def few(count: int) -> float:
    """The price of one that is fast for one token, and slow for more."""
    return 1e-5 if count == 1 else 9e-5


def test_ranges_are_in_force_stored_and_loaded(file: ChoiceFile) -> None:
    registry, first = start(file=file, rival=few)
    assert [used(registry, each) for each in (1, 2, 8, 100)] == ["rival", *["steady"] * 3]
    registry, second = start(CACHED, file)
    assert second.choices == first.choices
    assert [used(registry, each) for each in (1, 2, 8, 100)] == ["rival", *["steady"] * 3]
    assert [each.winners for each in second.changed] == ["1..1: rival, 2..: steady"]


def test_a_choice_for_other_ends_of_ranges_is_not_used(file: ChoiceFile) -> None:
    start(file=file, rival=few)
    blocked = {1: "steps of 1 tokens are captured at 8"}
    registry, report = start(replace(CACHED, blocked=blocked), file)
    assert used(registry, 1) == "steady"
    assert report.remarks == (
        "scale: the stored choice is not used: ends of ranges is none, and was 1",
    )
    _, report = start(replace(TIMED, blocked=blocked), file, rival=few)
    (choice,) = report.choices
    assert choice.winners == "rival"
    assert choice.remark.endswith("captured at 8")


def test_a_damaged_range_costs_a_remark_and_new_timing(file: ChoiceFile) -> None:
    start(file=file, rival=few)
    file.path.write_text(file.path.read_text().replace("steady", "native", 1))
    _, report = start(CACHED, file)
    assert report.choices == ()
    assert "it is damaged" in report.remarks[0]
