"""A pipeline is a value: passes are added, removed, moved and limited by name."""

import pytest

from ir_passes.base import PassContext
from ir_passes.errors import PipelineError
from ir_passes.pipeline import Pipeline
from ir_passes.report import Effect
from ir_passes.transforms.shard_sequence import ShardSequence

from .passes import DoubleToSum, Idle, named

ABC = Pipeline.of(named("a"), named("b"), named("c"))


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ({}, ("a", "b", "c", "new")),
        ({"before": "a"}, ("new", "a", "b", "c")),
        ({"before": "c"}, ("a", "b", "new", "c")),
        ({"after": "a"}, ("a", "new", "b", "c")),
        ({"after": "c"}, ("a", "b", "c", "new")),
    ],
)
def test_pass_is_added_in_its_place(place: dict[str, str], names: tuple[str, ...]) -> None:
    assert ABC.add(named("new"), **place).names == names
    assert ABC.names == ("a", "b", "c")


def test_pass_is_removed_and_moved_by_name() -> None:
    assert ABC.remove("b").names == ("a", "c")
    assert ABC.move("c", before="a").names == ("c", "a", "b")
    assert ABC.move("a", after="b").names == ("b", "a", "c")


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ((), ("a", "b", "c")),
        (("c", "a"), ("c", "b", "a")),
        (("b",), ("a", "b", "c")),
        (("c", "b", "a"), ("c", "b", "a")),
    ],
)
def test_named_passes_take_this_order_in_their_own_places(
    order: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert ABC.reorder(order).names == names


def test_unknown_repeated_and_contradictory_names_are_errors() -> None:
    with pytest.raises(PipelineError, match="No pass `d`; Valid: `a`, `b`, `c`"):
        ABC.remove("d")
    with pytest.raises(PipelineError, match="No pass `fuse`; did you mean `fuse_it`"):
        Pipeline.of(named("fuse_it")).disable(["fuse"], "")
    with pytest.raises(PipelineError, match=r"\['a'\] are in the pipeline twice"):
        ABC.add(named("a"))
    with pytest.raises(PipelineError, match="names a pass twice"):
        ABC.reorder(("a", "a"))
    with pytest.raises(PipelineError, match="name one place"):
        ABC.add(named("new"), before="a", after="b")


def test_limit_counts_only_what_would_run() -> None:
    limited = ABC.disable(["a"], "tried").limit(1)
    assert [entry.effect for entry in limited] == [
        Effect.DISABLED,
        Effect.RAN,
        Effect.BEYOND_LIMIT,
    ]
    assert str(limited) == "b"
    assert str(ABC.limit(0)) == "no passes"
    assert str(ABC.limit(9)) == "a → b → c"


def test_enabled_pass_remembers_who_asked() -> None:
    entry = ABC.disable(["b"], "off").enable("b", "a flag").entries[1]
    assert (entry.is_enabled, entry.is_wanted, entry.requested_by) == (True, True, "a flag")


def test_endpoints_are_those_of_passes_that_run() -> None:
    pipeline = Pipeline.of(Idle(), DoubleToSum(16))
    assert pipeline.endpoints() == (16,)
    assert pipeline.disable(["double_to_sum"], "off").endpoints() == ()


def test_a_pass_that_changes_rows_is_named_where_it_runs() -> None:
    sharding = Pipeline.of(Idle(), ShardSequence(min_tokens=8))
    ranks = PassContext(axes={"tp": 2})
    assert sharding.changing_rows(ranks) == "shard_sequence"
    assert sharding.changing_rows(PassContext()) is None
    assert sharding.disable(["shard_sequence"], "off").changing_rows(ranks) is None


def test_options_are_described_where_they_differ() -> None:
    assert DoubleToSum().describe_options() == ""
    assert DoubleToSum(8).describe_options() == "threshold=8"


def test_factors_hold_every_option_and_the_order() -> None:
    pipeline = Pipeline.of(Idle(), DoubleToSum(8))
    idle, double = pipeline.factors()
    assert idle.endswith("passes.Idle()")
    assert double.endswith("passes.DoubleToSum(threshold=8)")
    assert pipeline.move("idle", after="double_to_sum").factors() == (double, idle)
    assert pipeline.disable(["idle"], "off").factors() == (double,)
