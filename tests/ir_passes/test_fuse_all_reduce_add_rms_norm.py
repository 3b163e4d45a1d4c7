"""A sum over ranks, the residual add and the norm become one op, bit for bit, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import thread_ranks
from torch import Tensor

import ir_core as ir
from ir_passes.arguments import bound_arguments
from ir_passes.base import PassContext
from ir_passes.config import PassConfig
from ir_passes.default_pipeline import build_pipeline
from ir_passes.dialect import Dialect
from ir_passes.pipeline import Pipeline
from ir_passes.report import Effect, PassReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.fuse_all_reduce_add_rms_norm import FuseAllReduceAddRmsNorm

from .graphs import calls, check_golden, random_tensors, trace

SUM, NORM, ADD_NORM = ir.ops.all_reduce, ir.ops.rms_norm, ir.ops.fused_add_rms_norm
SHAPES = (("T", 8), ("T", 8), (8,))
NATIVE = {op: ["native"] for op in ("rms_norm", "fused_add_rms_norm")}
SIZE = 2

Model = Callable[[Tensor, Tensor, Tensor], Any]


def _run(
    model: Model, dtype: torch.dtype = torch.float32, size: int = SIZE, **options: Any
) -> tuple[WholeGraph, PassReport]:
    whole = trace(model, *SHAPES, dtype=dtype, names="x r w")
    context = PassContext(Dialect(), axes={"tp": size})
    pipeline = Pipeline.of(FuseAllReduceAddRmsNorm(**options))
    with thread_ranks(size):
        report = run_pipeline(pipeline, whole.module, context, RunOptions(verify_each=True))
    return whole, report.passes[0]


def _results(whole: WholeGraph, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """By rank; each brings values of its own for `x`, and all the same for the rest."""
    x, residual, weight = random_tensors(*SHAPES, dtype=dtype)
    with thread_ranks(SIZE) as ranks, ir.priority(NATIVE):
        return ranks.run(lambda rank: whole.module(x * (rank + 1), residual, weight))


def _assert_same_results(
    model: Model, fused: WholeGraph, dtype: torch.dtype = torch.float32
) -> None:
    plain = trace(model, *SHAPES, dtype=dtype, names="x r w")
    for got, wanted in zip(_results(fused, dtype), _results(plain, dtype), strict=True):
        assert all(map(torch.equal, got, wanted))


def _layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return ADD_NORM(SUM(x), r, w, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_fused_result_is_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    whole, report = _run(_layer, dtype)
    assert report.result.changed == 1
    assert calls(whole.module) == ["all_reduce_add_rms_norm"]
    _assert_same_results(_layer, whole, dtype)


SPELLINGS: dict[str, Model] = {
    "sum as the residual": lambda x, r, w: ADD_NORM(r, SUM(x), w, 1e-5),
    "two sums": lambda x, r, w: ADD_NORM(SUM(x), SUM(r), w, 1e-5),
    "a sum that goes on as the residual": lambda x, r, w: (
        total := SUM(r),
        *ADD_NORM(total, SUM(x), w, 1e-5),
    ),
    "keywords": lambda x, r, w: ADD_NORM(
        weight=w, x_residual=r, epsilon=1e-5, x=SUM(x, group="tp"), variance_size=None
    ),
    "donated": lambda x, r, w: ADD_NORM.maybe_inplace(SUM(x), r + 1, w, 1e-5),
    "no weight": lambda x, r, w: ADD_NORM(SUM(x), r, None, 0.5),
    "part of the row": lambda x, r, w: ADD_NORM(SUM(x), r, w, 1e-5, 4),
    "a view in between": lambda x, r, w: ADD_NORM(SUM(x).view(-1, 8), r, w, 1e-5),
    "a partial sum that is the residual": lambda x, r, w: ADD_NORM(SUM(x), x, w, 1e-5),
    "only the norm is read": lambda x, r, w: _layer(x, r, w)[0],
    "only the residual is read": lambda x, r, w: _layer(x, r, w)[1],
}


@pytest.mark.parametrize("model", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_matches_and_computes_the_same(model: Model) -> None:
    whole, report = _run(model)
    assert report.result.changed == 1
    assert calls(whole.module).count("all_reduce_add_rms_norm") == 1
    assert "fused_add_rms_norm" not in calls(whole.module)
    _assert_same_results(model, whole)


def test_each_layer_keeps_its_own_constants() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        for epsilon, size in ((1e-5, None), (1e-6, 4), (0.5, None)):
            x, r = ADD_NORM(SUM(x * 2), r, w, epsilon, size)
        return x, r

    whole, report = _run(model)
    assert report.result.changed == 3
    op = ir.ops.all_reduce_add_rms_norm.torch_op
    given = [bound_arguments(node) for node in whole.module.graph.nodes if node.target is op]
    constants = [(each["epsilon"], each["variance_size"], each["group"]) for each in given]
    assert constants == [(1e-5, None, "tp"), (1e-6, 4, "tp"), (0.5, None, "tp")]
    _assert_same_results(model, whole)


def test_donated_residual_of_the_caller_is_left_alone() -> None:
    whole, report = _run(lambda x, r, w: ADD_NORM.maybe_inplace(SUM(x), r, w, 1e-5))
    assert report.result.changed == 1
    x, residual, weight = random_tensors(*SHAPES)
    before = residual.clone()
    with thread_ranks(1) as ranks:
        ranks.run(lambda _: whole.module(x, residual, weight))
    assert torch.equal(residual, before)


def _read_elsewhere(x: Tensor, r: Tensor, w: Tensor) -> Any:
    total = SUM(x)
    return *ADD_NORM(total, r, w, 1e-5), total


MISSES: dict[str, tuple[Model, str]] = {
    "sum read elsewhere": (_read_elsewhere, "`all_reduce` is also used by `output`"),
    "residual of another dtype": (
        lambda x, r, w: ADD_NORM(SUM(x), r.double(), w, 1e-5),
        "the terms differ: dtype torch.float32, not torch.float64",
    ),
    "residual of one row": (
        lambda x, r, w: ADD_NORM(SUM(x), r[:1], w, 1e-5),
        "the terms differ: shape",
    ),
    "another axis": (
        lambda x, r, w: ADD_NORM(SUM(x, "ep"), r, w, 1e-5),
        "the sum is over axis `ep`, not `tp`",
    ),
    "twice the sum": (
        lambda x, r, w: ADD_NORM(total := SUM(x), total, w, 1e-5),
        "the sum is added to itself",
    ),
    "twice a view of the sum": (
        lambda x, r, w: ADD_NORM(total := SUM(x).view(-1, 8), total, w, 1e-5),
        "the sum is added to itself",
    ),
    "scaled sum": (
        lambda x, r, w: ADD_NORM(SUM(x) * 2, r, w, 1e-5),
        "`x` is made by `aten.mul`, not by `ir.all_reduce`",
    ),
    "no sum": (
        lambda x, r, w: ADD_NORM(x, r, w, 1e-5),
        "`x` is made by `an input`, not by `ir.all_reduce`",
    ),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason_and_changes_nothing(model: Model, reason: str) -> None:
    whole, report = _run(model)
    assert report.result.changed == 0
    assert reason in report.near_misses[0].reason
    assert "all_reduce_add_rms_norm" not in calls(whole.module)


def test_norm_without_a_residual_is_left_alone() -> None:
    whole, report = _run(lambda x, r, w: NORM(SUM(x), w, 1e-5))
    assert report.result.matches == ()
    assert calls(whole.module) == ["all_reduce", "rms_norm"]


def test_a_provider_that_only_sums_goes_on_doing_that() -> None:
    whole = trace(_layer, *SHAPES)
    context = PassContext(Dialect(), axes={"tp": SIZE})
    with thread_ranks(SIZE), ir.priority({"all_reduce_add_rms_norm": ["native"]}):
        report = run_pipeline(Pipeline.of(FuseAllReduceAddRmsNorm()), whole.module, context)
    (row,) = report.passes[0].near_misses
    assert "`threads` would sum, and `native` would do it all in one step" in row.reason
    assert calls(whole.module) == ["all_reduce", "fused_add_rms_norm"]


def test_a_provider_that_was_named_for_the_norm_computes_it() -> None:
    context = PassContext(Dialect(), axes={"tp": SIZE})
    with ir.priority({"fused_add_rms_norm": ["native"]}):
        whole = trace(_layer, *SHAPES)
        report = run_pipeline(Pipeline.of(FuseAllReduceAddRmsNorm()), whole.module, context)
    (row,) = report.passes[0].near_misses
    assert "`native` was asked for the norm" in row.reason
    assert calls(whole.module) == ["all_reduce", "fused_add_rms_norm"]


def test_one_rank_is_a_reason_not_to_run() -> None:
    whole, report = _run(_layer, size=1)
    assert (report.effect, report.reason) == (Effect.DOES_NOT_APPLY, "axis `tp` has one rank")
    assert calls(whole.module) == ["all_reduce", "fused_add_rms_norm"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (PassConfig(), ["all_reduce_add_rms_norm"]),
        (PassConfig(fuse_allreduce_rms=False), ["all_reduce", "fused_add_rms_norm"]),
        (
            PassConfig(enable_sp=True),
            ["reduce_scatter", "fused_add_rms_norm", "sym_size", "all_gather"],
        ),
    ],
    ids=["default", "off", "sequence parallelism"],
)
def test_default_pipeline_fuses_what_is_not_sharded(config: PassConfig, names: list[str]) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return ADD_NORM(SUM(x), SUM(r) if config.enable_sp else r, w, 1e-5)[0]

    with thread_ranks(SIZE):
        whole = trace(model, *SHAPES)
        context = PassContext(Dialect(), axes={"tp": SIZE})
        run_pipeline(build_pipeline(config), whole.module, context)
    assert list(dict.fromkeys(calls(whole.module))) == names


def test_text_before_and_after() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        r = SUM(r)
        x = NORM(r, w, 1e-5)
        x, r = ADD_NORM(SUM(x * 2), r, w, 1e-5)
        return ADD_NORM(r, SUM(x * 3), None, 1e-6, 4)

    whole, report = _run(model)
    assert report.result.changed == 2
    check_golden("fuse_all_reduce_add_rms_norm_after", whole.module)
    check_golden("fuse_all_reduce_add_rms_norm_before", trace(model, *SHAPES, names="x r w").module)
