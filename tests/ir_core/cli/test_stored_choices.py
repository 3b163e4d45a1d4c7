import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from priced_ops import CLOCK, priced_registry, priced_step

import ir_core as ir
from ir_core import Registry
from ir_core.autotuning.autotune import autotune
from ir_core.autotuning.choice_file import ChoiceFile
from ir_core.autotuning.plan import TuningPlan
from ir_core.autotuning.table import Timing
from ir_core.cli import main
from ir_core.cli.explanation import explain
from ir_core.cli.stored_choices import adopt_stored

MACHINE = {"cpu": "A"}
CALL = (torch.ones(2, 4), torch.ones(4), 1.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """What a server has stored that found `rival` the fastest."""
    registry = priced_registry()
    CLOCK.reset(steady=4e-5, rival=2e-5, native=8e-5)
    plan = TuningPlan({1: 1.0, 8: 1.0}, is_fused=False, is_timed=True)
    step = priced_step(registry["scale"])
    autotune(registry, step, plan, ChoiceFile(tmp_path, MACHINE), clock=CLOCK)
    return tmp_path


def adopt(registry: Registry, directory: Path, *, is_fused: bool = False) -> tuple[str, ...]:
    return adopt_stored(registry["scale"], directory, is_fused=is_fused, machine=MACHINE)


def test_a_stored_choice_is_explained_with_its_times(directory: Path) -> None:
    registry = priced_registry()
    assert adopt(registry, directory) == ()
    explanation = explain(registry["scale"], CALL)
    assert [(each.provider, each.source) for each in explanation.verdicts] == [
        ("rival", "autotuned"),
        ("steady", "platform test"),
        ("native", "fallback"),
    ]
    assert explanation.to_text().splitlines()[-2:] == [
        "timed: 1 token: steady 40.0 µs, native 80.0 µs, rival 20.0 µs; "
        "8 tokens: steady 40.0 µs, native 80.0 µs, rival 20.0 µs",
        "selected: rival",
    ]


def test_a_choice_that_does_not_hold_is_said_and_not_adopted(directory: Path) -> None:
    registry = priced_registry()
    (remark,) = adopt(registry, directory, is_fused=True)
    assert remark.endswith("is not used: execution is compiled, and was as written")
    assert explain(registry["scale"], CALL).selected == "steady"


def test_without_an_option_nothing_was_timed(directory: Path) -> None:
    explanation = explain(priced_registry()["scale"], CALL)
    assert explanation.tuned is None
    assert "timed" not in explanation.to_text()


def test_command_says_why_nothing_stored_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["explain", "rms_norm", "--autotuned", str(tmp_path)]
    assert main(argv) == 0
    assert "autotuned: nothing is stored for this machine" in capsys.readouterr().out
    assert main([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["remarks"] == ["nothing is stored for this machine"]
    assert data["tuned"] is None
    assert not ir.registry().priorities.tuned


def test_both_times_of_what_was_compiled_are_shown(directory: Path) -> None:
    registry = priced_registry()
    (stored,) = ChoiceFile(directory, MACHINE).load().choices
    written = (Timing("native", {1: 80.0}),)
    registry.priorities.adopt_tuned([replace(stored.choice, as_written=written)])
    lines = explain(registry["scale"], CALL).to_text().splitlines()
    assert lines[-3].startswith("timed, compiled: 1 token: steady 40.0 µs")
    assert lines[-2] == "  as written, which decides nothing: 1 token: native 80.0 µs"


def test_ranges_and_why_there_are_no_more_are_shown(tmp_path: Path) -> None:
    registry = priced_registry()
    CLOCK.reset(steady=4e-5, native=8e-5, rival=lambda count: 2e-5 if count == 1 else 9e-5)
    plan = TuningPlan({1: 4.0, 8: 1.0}, is_fused=False, is_timed=True)
    step, file = priced_step(registry["scale"]), ChoiceFile(tmp_path, MACHINE)
    autotune(registry, step, plan, file, clock=CLOCK)
    registry = priced_registry()
    assert adopt(registry, tmp_path) == ()
    explanation = explain(registry["scale"], CALL)
    assert explanation.selected == "steady"
    assert explanation.to_text().splitlines()[-2] == "  chosen by rows: 1..1: rival, 2..: steady"
    single = torch.ones(1, 4), *CALL[1:]
    assert explain(registry["scale"], single).selected == "rival"
    assert asdict(explanation)["tuned"]["later"] == ({"first": 2, "provider": "steady"},)
    (stored,) = file.load().choices
    registry = priced_registry()
    registry.priorities.adopt_tuned([replace(stored.choice, later=(), remark="one for all")])
    assert explain(registry["scale"], CALL).to_text().splitlines()[-2] == "  one for all"


def test_an_op_that_is_never_timed_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "all_reduce", "--autotuned", "nowhere"]) == 0
    assert "autotuned: it is not timed: the ranks compute it together" in capsys.readouterr().out
