"""The runner holds each pass to its word and says who broke it, after whom."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ir_passes.base import PassContext
from ir_passes.errors import PassError, VerificationError
from ir_passes.metadata import fake_of
from ir_passes.pipeline import Pipeline
from ir_passes.report import Effect, PipelineReport, format_matches, format_report
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.whole_graph import WholeGraph, trace_function

from .graphs import calls, random_tensors, trace
from .passes import DoubleToSum, Idle, Misbehaving, OnManyRanks, first_call, named

ROWS = ("T", 8)
CHECKED = RunOptions(verify_each=True)


def _whole() -> WholeGraph:
    return trace(lambda x: (x * 2, x * 3), ROWS)


def _run(pipeline: Pipeline, options: RunOptions = CHECKED, **context: Any) -> PipelineReport:
    return run_pipeline(pipeline, _whole().module, PassContext(**context), options)


def test_report_says_what_every_pass_did() -> None:
    whole = _whole()
    report = run_pipeline(Pipeline.of(Idle(), DoubleToSum()), whole.module, PassContext(), CHECKED)
    assert report.changed == 1
    (idle, double) = report.passes
    assert (idle.result.changed, double.result.changed) == (0, 1)
    assert double.result.notes == ("looked at products",)
    assert [row.reason for row in double.near_misses] == ["the factor is 3"]
    assert min(report.seconds, double.seconds) > 0
    assert calls(whole.module) == ["add", "mul"]
    (x,) = random_tensors(ROWS)
    torch.testing.assert_close(whole.module(x), (x * 2, x * 3))


def test_requested_and_effective_stand_side_by_side() -> None:
    pipeline = Pipeline.of(named("a"), OnManyRanks(), DoubleToSum(8), named("b"), named("c"))
    pipeline = pipeline.enable("on_many_ranks", "a flag").disable(["a"], "--disable-pass").limit(3)
    report = _run(pipeline)
    assert [each.effect for each in report.passes] == [
        Effect.DISABLED,
        Effect.DOES_NOT_APPLY,
        Effect.RAN,
        Effect.RAN,
        Effect.BEYOND_LIMIT,
    ]
    table = format_report(report).splitlines()
    assert table[1].split() == ["a", "default", "disabled:", "--disable-pass", "0", "0"]
    assert "does not apply: there is one rank" in table[2]
    assert "double_to_sum(threshold=8)" in table[3]
    assert "beyond the limit: only the first 3 run" in table[5]
    assert "warning: Pass `on_many_ranks`, requested by a flag, changed nothing" in table[6]
    assert _run(pipeline, axes={"tp": 2}).of("on_many_ranks").effect is Effect.RAN


def test_wanted_pass_that_finds_nothing_warns(caplog: pytest.LogCaptureFixture) -> None:
    whole = trace(lambda x: x * 3, ROWS)
    pipeline = Pipeline.of(Idle(), DoubleToSum())
    with caplog.at_level(logging.WARNING, "ir_passes.pipeline"):
        assert run_pipeline(pipeline, whole.module, PassContext()).warnings == ()
        wanted = pipeline.enable("double_to_sum", "pass_config.enable")
        (warning,) = run_pipeline(wanted, whole.module, PassContext()).warnings
    assert "requested by pass_config.enable, changed nothing: it found nothing" in warning
    own = [each for each in caplog.records if each.name.startswith("ir_passes")]
    assert [each.getMessage() for each in own] == [warning]


def test_table_of_matches_gives_the_reason_of_each_near_miss() -> None:
    table = format_matches(_run(Pipeline.of(DoubleToSum())).passes).splitlines()
    assert table[1].split() == ["double_to_sum", "mul", "changed"]
    assert table[2].endswith("the factor is 3")
    assert format_matches(_run(Pipeline.of(Idle())).passes) == "No pass looked at anything."


def _raise(graph: Graph) -> int:
    raise KeyError("lost")


def _lie(graph: Graph) -> int:
    return 3


def _be_silent(graph: Graph) -> int:
    first_call(graph).update_arg(1, 5)
    return 0


def _write(graph: Graph) -> int:
    first_call(graph).target = torch.ops.aten.mul_.Tensor
    return 1


def _leave_a_stale_fake(graph: Graph) -> int:
    node = first_call(graph)
    node.target, node.args = torch.ops.aten.sum.dim_IntList, (node.args[0], [1])
    return 1


def _leave_users_stale(graph: Graph) -> int:
    node = first_call(graph)
    node.target, node.args = torch.ops.aten.sum.dim_IntList, (node.args[0], [1])
    with fake_of(node).fake_mode:
        node.meta["val"] = fake_of(node).sum(1)
    return 1


def _keep_changing(graph: Graph) -> int:
    node = first_call(graph)
    node.update_arg(1, node.args[1] + 1)  # type: ignore[operator]
    return 1


DEEDS: dict[str, tuple[Callable[[Graph], int], str]] = {
    "raises": (_raise, "KeyError: 'lost'"),
    "claims too much": (_lie, "it reports 3 changes, but the graph did not change"),
    "claims too little": (_be_silent, "it reports 0 changes, but the graph did change"),
    "writes": (_write, "`aten.mul_.Tensor` writes `self`"),
    "stale fake": (_leave_a_stale_fake, "its recorded fake value has shape"),
    "stale users": (_leave_users_stale, "`add.*its recorded fake value has shape"),
    "not idempotent": (_keep_changing, "changed 1 places when it ran again"),
}


@pytest.mark.parametrize(("deed", "message"), DEEDS.values(), ids=DEEDS.keys())
def test_broken_promise_names_the_pass_and_those_before(
    deed: Callable[[Graph], int], message: str
) -> None:
    whole = trace(lambda x: (x * 3) + 1, ROWS)
    pipeline = Pipeline.of(Idle(), named("b"), Misbehaving(deed), named("c"))
    with pytest.raises(PassError, match=message) as error:
        run_pipeline(pipeline, whole.module, PassContext(), CHECKED)
    assert str(error.value).startswith("Pass `misbehaving` (deed=")
    assert "failed after `idle`, `b`: " in str(error.value)
    assert error.value.__cause__ is not None


def test_only_what_changed_is_evaluated_again_unless_asked() -> None:
    whole = _whole()
    stale = first_call(whole.module.graph)
    with fake_of(stale).fake_mode:
        stale.meta["val"] = fake_of(stale).sum(1)
    run_pipeline(Pipeline.of(Idle()), whole.module, PassContext())
    with pytest.raises(VerificationError, match="`mul`"):
        run_pipeline(Pipeline.of(Idle()), whole.module, PassContext(), CHECKED)


def test_dump_has_a_file_before_and_one_after_each_pass(tmp_path: Path) -> None:
    _run(Pipeline.of(Idle(), DoubleToSum()), RunOptions(dump_path=tmp_path / "dump"))
    files = {path.name: path.read_text() for path in sorted((tmp_path / "dump").iterdir())}
    assert list(files) == ["00-traced.txt", "01-idle.txt", "02-double_to_sum.txt"]
    assert files["00-traced.txt"] == files["01-idle.txt"]
    assert "aten.mul.Tensor(in0, 2)" in files["01-idle.txt"]
    assert "aten.add.Tensor(in0, in0)" in files["02-double_to_sum.txt"]


def test_guards_of_a_pass_are_its_own() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dims = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.ones(6, 8), symbolic_context=dims)

    def model(x: Tensor) -> tuple[Tensor]:
        return (x * 3,)

    def ask(graph: Graph) -> int:
        return 0 if fake_of(first_call(graph)).shape[0] > 4 else 1

    whole = trace_function(model, [fake])
    report = run_pipeline(
        Pipeline.of(Idle(), Misbehaving(ask)), whole.module, PassContext(), RunOptions()
    )
    (guard,) = report.of("misbehaving").guards
    assert ("4" in guard.expression, guard.cause) == (True, "misbehaving")
    assert report.of("idle").guards == ()
