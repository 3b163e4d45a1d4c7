"""Products and the collectives next to them become one op; whatever else reads either stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from shm_ranks import run_on_shm_ranks
from torch import Tensor

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_passes.arguments import bound_arguments
from ir_passes.base import Pass, PassContext
from ir_passes.location import INPUT_PATH
from ir_passes.pipeline import Pipeline
from ir_passes.printer import print_graph
from ir_passes.report import Effect, PassReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.overlap_collectives import OverlapCollectives
from ir_passes.transforms.shard_sequence import ShardSequence

from .graphs import calls, check_golden, node_calling, random_tensors, trace

SIZE, WIDTH = 2, 8
# Activations, weights of a product down and one up, a norm's weight.
SHAPES = ("T", 4), (WIDTH, 4), (6, WIDTH), (WIDTH,)
LINEAR, SCATTER, GATHER = ir.ops.linear, ir.ops.reduce_scatter, ir.ops.all_gather

Model = Callable[[Tensor, Tensor, Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Two ranks that every provider would reach; nothing is exchanged."""
    merged = ("linear_reduce_scatter", "all_gather_linear")
    reached = Group("tp", 0, SIZE, {"shm": object(), "gloo": object()})
    with scoped_groups(reached), ir.priority({name: ["shm", "gloo"] for name in merged}):
        yield


def of_layer(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    rows = ir.ops.rms_norm(SCATTER(LINEAR(x, down)), scale, 1e-5)
    return LINEAR(GATHER(rows, x.shape[0]), up)


def traced(model: Model, dtype: torch.dtype = torch.float32) -> WholeGraph:
    return trace(model, *SHAPES, dtype=dtype, names="x down up scale")


def run(whole: WholeGraph, *before: Pass, axes: int = SIZE) -> PassReport:
    """Run the pass with every check on, which includes running it twice."""
    context = PassContext(axes={"tp": axes})
    pipeline = Pipeline.of(*before, OverlapCollectives())
    return run_pipeline(pipeline, whole.module, context, RunOptions(verify_each=True)).passes[-1]


def test_text_before_and_after() -> None:
    whole = traced(of_layer)
    check_golden("overlap_collectives_before", whole.module)
    report = run(whole)
    check_golden("overlap_collectives_after", whole.module)
    assert report.result.changed == 2
    assert report.near_misses == ()
    assert report.guards == ()


def test_what_sequence_parallelism_leaves_is_merged() -> None:
    def model(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Tensor:
        total = ir.ops.all_reduce(LINEAR(x, down))
        return LINEAR(ir.ops.rms_norm(total, scale, 1e-5), up)

    whole = traced(model)
    assert run(whole, ShardSequence()).result.changed == 2
    # The count of rows is read from the product that is gone: now it is from what it was made of.
    names = ["linear_reduce_scatter", "rms_norm", "sym_size", "all_gather_linear"]
    assert calls(whole.module) == names


SPELLINGS: dict[str, Model] = {
    "identity view": lambda x, down, up, scale: SCATTER(LINEAR(x, down).view(-1, WIDTH)),
    "view of the rows": lambda x, down, up, scale: LINEAR(GATHER(x, 3).view(3, 4), down),
    "keywords": lambda x, down, up, scale: SCATTER(x=LINEAR(weight=down, x=x), group="tp"),
    "bias": lambda x, down, up, scale: SCATTER(LINEAR(x, down, scale)),
    "two weights in a row": lambda x, down, up, scale: LINEAR(LINEAR(GATHER(x, 3), down), up),
}


@pytest.mark.parametrize("model", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_matches(model: Model) -> None:
    assert run(traced(model)).result.changed == 1


def test_weights_keep_their_layout_and_their_bias() -> None:
    def model(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        dealt = SCATTER(LINEAR(x, down, scale, "panel16"))
        return dealt, LINEAR(GATHER(x, x.shape[0]), down, scale, "panel16")

    whole = traced(model)
    run(whole)
    for name in ("linear_reduce_scatter", "all_gather_linear"):
        given = bound_arguments(node_calling(whole.module, name))
        assert given["bias"].meta[INPUT_PATH] == "scale"
        assert (given["layout"], given["group"]) == ("panel16", "tp")


def returned_product(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Any:
    product = LINEAR(x, down)
    return SCATTER(product), product


def returned_rows(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Any:
    return GATHER(x, x.shape[0])


def rows_of_two_products(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Any:
    rows = GATHER(x, x.shape[0])
    return LINEAR(rows, down), LINEAR(rows, down * 2)


def eight_bits(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Any:
    return SCATTER(ir.ops.linear_w8a16(x, down.to(torch.int8), down[:, :1].half(), group_size=4))


def gathered_weight(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> Any:
    return LINEAR(x, GATHER(down, WIDTH))


MISSES: dict[str, tuple[Model, str]] = {
    "product elsewhere": (returned_product, "`linear` is also used by `output`"),
    "no product": (
        lambda x, down, up, scale: SCATTER(x * 2),
        "`x` is made by `aten.mul`, not by `ir.linear`",
    ),
    "8 bits": (eight_bits, "`x` is made by `ir.linear_w8a16`, not by `ir.linear`"),
    "rows returned": (returned_rows, "the model returns all rows"),
    "two products": (rows_of_two_products, "2 nodes read the gathered rows"),
    "no product of the rows": (
        lambda x, down, up, scale: torch.relu(GATHER(x, 3)),
        "`aten.relu.default` reads all rows",
    ),
    "weight": (gathered_weight, "`x` is made by `an input`, not by `ir.all_gather`"),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason_and_changes_nothing(model: Model, reason: str) -> None:
    whole = traced(model)
    before = print_graph(whole.module.graph)
    report = run(whole)
    assert [each.reason for each in report.near_misses] == [reason]
    assert (report.result.changed, print_graph(whole.module.graph)) == (0, before)


def test_product_that_stays_still_gives_its_count_of_rows() -> None:
    def model(x: Tensor, down: Tensor, up: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        product = LINEAR(x, down)
        return ir.ops.rms_norm(ir.ops.all_reduce(product), scale, 1e-5), product

    whole = traced(model)
    context = PassContext(axes={"tp": SIZE})
    run_pipeline(Pipeline.of(ShardSequence()), whole.module, context)
    before = print_graph(whole.module.graph)
    assert "sym_size.int(linear, 0)" in before
    scattered, gathered = run(whole).near_misses
    assert scattered.reason == "`linear` is also used by `output`"
    assert gathered.reason == "the model returns all rows"
    assert print_graph(whole.module.graph) == before


def test_ranks_that_no_provider_reaches_keep_both_ops() -> None:
    with scoped_groups(Group("tp", 0, SIZE)):
        (row, _) = run(traced(of_layer)).near_misses
    assert row.reason.startswith("no provider of `linear_reduce_scatter` reaches the ranks: shm ")
    assert row.reason.endswith("gloo the group of axis `tp` has no transport `gloo`")


def test_types_that_no_provider_takes_keep_both_ops() -> None:
    report = run(traced(of_layer, torch.float64))
    assert report.result.changed == 0
    assert all("x has float64" in each.reason for each in report.near_misses)


def test_other_axis_is_left_alone() -> None:
    with scoped_groups(Group("ep", 0, SIZE, {"gloo": object()})):
        whole = traced(lambda x, down, up, scale: SCATTER(LINEAR(x, down), "ep"))
        assert run(whole).result.matches == ()


def test_one_rank_is_a_reason_not_to_run() -> None:
    report = run(traced(of_layer), axes=1)
    assert (report.effect, report.reason) == (Effect.DOES_NOT_APPLY, "axis `tp` has one rank")


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 64])
def test_ranks_compute_the_same(tokens: int) -> None:
    plain, merged = traced(of_layer), traced(of_layer)
    run(merged)
    inputs = [random_tensors(*SHAPES, tokens=tokens) for _ in range(SIZE)]
    for rank, (x, down, *_) in enumerate(inputs):
        x.mul_(rank + 1)
        down.add_(rank)

    def on_rank(rank: int) -> tuple[Tensor, Tensor]:
        (wanted,), (got,) = plain.module(*inputs[rank]), merged.module(*inputs[rank])
        return wanted, got

    for wanted, got in run_on_shm_ranks(SIZE, on_rank):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
