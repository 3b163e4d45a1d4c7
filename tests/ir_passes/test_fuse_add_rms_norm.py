"""Add and norm become one op wherever that is the same, bit for bit, and nowhere else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.arguments import bound_arguments
from ir_passes.report import PassReport
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.eliminate_noops import EliminateNoops
from ir_passes.transforms.fuse_add_rms_norm import FuseAddRmsNorm

from .graphs import apply, calls, check_golden, random_tensors, trace

ROWS, WEIGHT = ("T", 8), (8,)
NORM = ir.ops.rms_norm


def _run(
    model: Callable[..., Any], *shapes: Any, dtype: torch.dtype = torch.float32
) -> tuple[WholeGraph, PassReport]:
    shapes = shapes or (ROWS, ROWS, WEIGHT)
    whole = trace(model, *shapes, dtype=dtype, names="x r w")
    inputs = random_tensors(*shapes, dtype=dtype)
    with ir.priority({"rms_norm": ["native"], "fused_add_rms_norm": ["native"]}):
        wanted = whole.module(*inputs)
        report = apply(whole, FuseAddRmsNorm())
        got = whole.module(*inputs)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine, theirs)
    return whole, report.passes[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_fused_result_is_the_same_bit_for_bit(dtype: torch.dtype) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = x * 100 + r
        return NORM(total, w, 1e-5), total

    whole, report = _run(model, dtype=dtype)
    assert report.result.changed == 1
    assert calls(whole.module) == ["mul", "fused_add_rms_norm"]


CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "positional": lambda t, w: NORM(t, w, 1e-5),
    "keyword": lambda t, w: NORM(x=t, weight=w, epsilon=1e-5),
    "explicit default": lambda t, w: NORM(t, w, 1e-5, None),
    "overload": lambda t, w: torch.ops.ir.rms_norm.default(t, epsilon=1e-5, weight=w),
    "no weight": lambda t, w: NORM(t, None, 1e-5),
    "part of the row": lambda t, w: NORM(t, w, 1e-5, variance_size=4),
    "another epsilon": lambda t, w: NORM(t, w, 1e-12),
}


@pytest.mark.parametrize("norm", CALLS.values(), ids=CALLS.keys())
def test_every_spelling_and_every_scalar_matches(norm: Callable[..., Tensor]) -> None:
    _, report = _run(lambda x, r, w: norm(x + r, w))
    assert report.result.changed == 1


def test_each_layer_keeps_its_own_constants() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        for epsilon, size in ((1e-5, None), (1e-6, 4), (1e-12, None)):
            r = x * 2 + r
            x = NORM(r, w, epsilon, size)
        return x, r

    whole, report = _run(model)
    assert report.result.changed == 3
    op = ir.ops.fused_add_rms_norm.torch_op
    given = [bound_arguments(node) for node in whole.module.graph.nodes if node.target is op]
    constants = [(each["epsilon"], each["variance_size"]) for each in given]
    assert constants == [(1e-5, None), (1e-6, 4), (1e-12, None)]


def _before_the_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    early = total.view(-1, 2, 4) * 2
    return NORM(total, w, 1e-5), early


def _norm_alone(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    return NORM(x + r, w, 1e-5)


def _two_norms_of_one_sum(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return NORM(total, w, 1e-5), NORM(total, None, 1e-5)


@pytest.mark.parametrize("model", [_before_the_norm, _norm_alone, _two_norms_of_one_sum])
def test_sum_may_have_any_other_users(model: Callable[..., Any]) -> None:
    _, report = _run(model)
    assert report.result.changed == 1


MISSES: dict[str, tuple[Callable[..., Any], str]] = {
    "no sum": (lambda x, r, w: NORM(x, w, 1e-5), "`x` is made by `an input`"),
    "scaled sum": (lambda x, r, w: NORM(torch.add(x, r, alpha=2), w, 1e-5), "`alpha` is 2"),
    "a number": (lambda x, r, w: NORM(x + 1, w, 1e-5), "a number is added"),
    "broadcast": (lambda x, r, w: NORM(x + w, w, 1e-5), "the terms differ: shape"),
    "two dtypes": (
        lambda x, r, w: NORM(x + r.to(torch.bfloat16), w, 1e-5),
        "the terms differ: dtype",
    ),
    "weight of the sum": (
        lambda x, r, w: NORM(total := x + r, total[0], 1e-5),
        "uses a result before all operands are there",
    ),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason(model: Callable[..., Any], reason: str) -> None:
    _, report = _run(model)
    assert report.result.changed == 0
    assert reason in report.near_misses[0].reason


def test_views_in_between_change_no_count() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = (x.view(-1, 8) + r[:, :8]).view(-1, 2, 4).view(-1, 8)
        return NORM(total.contiguous(), w, 1e-5), total.expand(-1, 8)

    whole, report = _run(model)
    assert report.result.changed == 1
    apply(whole, EliminateNoops())
    assert calls(whole.module) == ["fused_add_rms_norm"]


def test_text_before_and_after() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        r = x + r
        x = NORM(r, w, 1e-5)
        r = ir.ops.linear(x, w.expand(8, 8)) + r
        return NORM(r.view(-1, 8), None, 1e-6, 4), r

    whole, _ = _run(model)
    check_golden("fuse_add_rms_norm_after", whole.module)
    check_golden("fuse_add_rms_norm_before", trace(model, ROWS, ROWS, WEIGHT, names="x r w").module)


@pytest.mark.parametrize("turned", [0, 1])
def test_terms_of_other_layouts_give_the_layout_of_their_sum(turned: int) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        terms = [x, r]
        terms[turned] = terms[turned].t().contiguous().t()
        total = terms[0] + terms[1]
        return NORM(total, w, 1e-5), total

    whole, _ = _run(model)
    inputs = random_tensors(ROWS, ROWS, WEIGHT)
    with ir.priority({"fused_add_rms_norm": ["native"]}):
        for mine, theirs in zip(whole.module(*inputs), model(*inputs), strict=True):
            assert mine.stride() == theirs.stride()
