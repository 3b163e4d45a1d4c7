"""What changes nothing goes; what somebody could tell apart stays, with a reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.report import PassReport
from ir_passes.tracing.model_trace import trace_model
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.eliminate_noops import EliminateNoops

from .conftest import Toy
from .graphs import apply, calls, check_golden, random_tensors, trace

ROWS = ("T", 8)
aten = torch.ops.aten
cast = torch.ops.prims.convert_element_type.default


def _run(model: Callable[..., Any], *shapes: Any) -> tuple[WholeGraph, PassReport]:
    shapes = shapes or (ROWS, ROWS)
    whole = trace(model, *shapes)
    inputs = random_tensors(*shapes)
    wanted = whole.module(*inputs)
    report = apply(whole, EliminateNoops())
    torch.testing.assert_close(whole.module(*inputs), wanted)
    return whole, report.passes[0]


NOOPS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.shape),
    "reshape": lambda x: x.reshape(-1, 8),
    "slice of columns": lambda x: x[:, :8],
    "slice of rows": lambda x: x[: x.shape[0]],
    "expand": lambda x: x.expand(-1, 8),
    "permute": lambda x: x.permute(0, 1),
    "two that cancel": lambda x: x.view(-1, 2, 4).view(-1, 8),
    "three that cancel": lambda x: x.t().unsqueeze(0).squeeze(0).t(),
    "one chunk": lambda x: x.split([8], dim=1)[0],
    "cast": lambda x: cast(x, torch.float32),
    "cast of a view": lambda x: cast(x.view(-1, 8), torch.float32),
    "copy": lambda x: torch.ops.aten._to_copy(x, dtype=torch.float32),
}


@pytest.mark.parametrize("noop", NOOPS.values(), ids=NOOPS.keys())
def test_noop_is_removed(noop: Callable[[Tensor], Tensor]) -> None:
    whole, report = _run(lambda x, r: noop(x * 2) + r)
    assert report.result.changed >= 1
    assert calls(whole.module) == ["mul", "add"]


EFFECTIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: x.t().contiguous().t(),
    "part": lambda x: x[:, :7].sum(1, keepdim=True),
    "other dtype": lambda x: x.to(torch.bfloat16).to(torch.float32),
    "same shape, other strides": lambda x: x.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8),
    "broadcast": lambda x: x[:, :1].expand(-1, 8),
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("view", EFFECTIVE.values(), ids=EFFECTIVE.keys())
def test_view_that_changes_something_stays(view: Callable[[Tensor], Tensor]) -> None:
    whole, report = _run(lambda x, r: view(x * 2) + r)
    assert len(calls(whole.module)) > 2
    assert report.near_misses == ()


def test_text_before_and_after() -> None:
    def model(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        torch._check(x.shape[0] >= 0)
        normal = ir.ops.rms_norm(x.view(-1, 2, 4).view(-1, 8), w[:8], 1e-5)
        total, _ = ir.ops.fused_add_rms_norm(normal[: x.shape[0]], cast(x, torch.float32), w, 1e-6)
        return total.expand(-1, 8), x.view(-1, 8)

    args = random_tensors(("T", 8), (8,))
    whole = trace_model(model, args, dynamic_dims={"x": 0})
    check_golden("eliminate_noops_before", whole.module)
    apply(whole, EliminateNoops())
    check_golden("eliminate_noops_after", whole.module)


def test_view_of_an_input_that_is_returned_stays_a_view() -> None:
    whole, report = _run(lambda x, r: (x.view(-1, 8), (x + r).view(-1, 8)))
    assert calls(whole.module) == ["view", "add"]
    (row,) = report.near_misses
    assert row.reason.startswith("it is returned, and is a tensor of its own beside")


def test_view_beside_its_returned_source_stays() -> None:
    def model(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        total = x + r
        return total, total.view(-1, 8)

    whole, report = _run(model)
    assert calls(whole.module) == ["add", "view"]
    assert "a tensor of its own beside `add`" in report.near_misses[0].reason


def test_cast_of_an_input_that_is_returned_stays_a_copy() -> None:
    whole, report = _run(lambda x, r: (cast(x, torch.float32), r * 2))
    assert calls(whole.module) == ["convert_element_type", "mul"]
    assert "must not share memory" in report.near_misses[0].reason


def test_cast_beside_its_returned_source_stays_a_copy() -> None:
    def model(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        total = x + r
        return total.view(-1), cast(total, torch.float32)

    whole, _ = _run(model)
    assert calls(whole.module) == ["add", "view", "convert_element_type"]


def test_cast_around_a_write_stays_a_copy(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        before = cast(cache, torch.float32)
        toy.store(x, cache)
        return before + 1, cache * 2

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    report = apply(whole, EliminateNoops(), dialect=toy.dialect)
    assert calls(whole.module) == ["convert_element_type", "store", "add", "mul"]
    assert "written or donated" in report.passes[0].near_misses[0].reason


def test_cast_that_is_donated_stays_a_copy() -> None:
    def model(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        copy = cast(x, torch.float32)
        out, _ = ir.ops.fused_add_rms_norm.maybe_inplace(copy, r, None, 1e-5)
        return out, x + 1

    whole = trace(model, ROWS, ROWS)
    report = apply(whole, EliminateNoops())
    assert "convert_element_type" in calls(whole.module)
    assert "written or donated" in report.passes[0].near_misses[0].reason


def test_write_without_users_survives(toy: Toy) -> None:
    def model(x: Tensor, cache: Tensor) -> Tensor:
        toy.store(x.view(-1, 8), cache[:, :8])
        return x * 2

    whole = trace(model, ROWS, ROWS, dialect=toy.dialect)
    apply(whole, EliminateNoops(), dialect=toy.dialect)
    assert calls(whole.module) == ["store", "mul"]
    x, cache = random_tensors(ROWS, ROWS)
    wanted = cache + x
    whole.module(x, cache)
    torch.testing.assert_close(cache, wanted)


def test_check_that_may_fail_stays() -> None:
    def model(x: Tensor) -> Tensor:
        torch._check(x.shape[0] % 2 == 0)
        return x * 2

    whole = trace_model(model, (torch.ones(6, 8),), dynamic_dims={"x": 0})
    before = calls(whole.module).count("_assert_scalar")
    apply(whole, EliminateNoops())
    assert calls(whole.module).count("_assert_scalar") == before - 1
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        whole.bind(whole.module)(3, torch.ones(3, 8))


def test_unused_outputs_and_sizes_go() -> None:
    def model(x: Tensor, r: Tensor) -> Tensor:
        out, _ = ir.ops.fused_add_rms_norm(x, r, None, 1e-5)
        left, _, _ = out.split([2, 2, 4], dim=1)
        return left * 2

    whole, report = _run(model)
    assert [node.name for node in whole.module.graph.nodes if not node.users] == ["output"]
    assert report.result.changed == 3
