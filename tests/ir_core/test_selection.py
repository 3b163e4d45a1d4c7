import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ir_core import IrOp, Registry, format_selections
from ir_core.selection import ExecutedSelection, Rejection

AddScale = Callable[..., None]
X = torch.ones(2, 4)


def refuse_doubles(x, weight, factor, width=None):  # type: ignore[no-untyped-def]
    return x.dtype != torch.float64 or "float64 is not supported"


def test_only_what_was_executed_is_recorded(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("single", supports_args=refuse_doubles)
    registry.priorities.set({"scale": "single"})
    registry.select("scale", X, None, 1.0)
    assert registry.selections() == ()
    scale(X, None, 1.0)
    scale(X, None, 1.0)
    scale(X.double(), None, 1.0)
    used, fallback = registry.selections()
    assert (used.op, used.provider, used.rejections) == ("scale", "single", ())
    assert used.calls >= 1
    assert fallback.provider == "native"
    assert fallback.rejections == (Rejection("single", "float64 is not supported"),)


def test_what_another_process_executed_is_shown_beside_ones_own(
    registry: Registry, scale: IrOp
) -> None:
    scale(X, None, 1.0)
    other = ExecutedSelection("rms_norm", "vllm_c", 3, (Rejection("aiter", "no ROCm device"),))
    registry.log.adopt([other])
    registry.log.adopt([replace(other, calls=5)])
    assert [(row.op, row.calls) for row in registry.selections()] == [("rms_norm", 5), ("scale", 1)]
    assert len(registry.log) == 2


@pytest.mark.parametrize("call", ["torch_op", "__call__"])
def test_calls_through_torch_are_recorded_too(registry: Registry, scale: IrOp, call: str) -> None:
    getattr(scale, call)(X, None, 1.0)
    assert [row.provider for row in registry.selections()] == ["native"]


def test_the_table_says_used_and_rejected() -> None:
    rows = [
        ExecutedSelection("rms_norm", "vllm_c", 3, (Rejection("aiter", "no ROCm device"),)),
        ExecutedSelection("linear", "native", 1, ()),
    ]
    assert format_selections(rows).splitlines() == [
        "op        used    rejected",
        "rms_norm  vllm_c  aiter: no ROCm device",
        "linear    native  -",
    ]
    assert format_selections([]) == "No op was executed."


def test_each_layout_of_the_weights_has_its_row(registry: Registry, project: IrOp) -> None:
    weight = torch.ones(3, 4)
    for layout in ("plain", "upside_down", "plain"):
        project(X, weight, None, layout)
    rows = registry.selections()
    assert [(row.provider, row.layout) for row in rows] == [
        ("native", "plain"),
        ("native", "upside_down"),
    ]
    assert [line.split("  ")[1] for line in format_selections(rows).splitlines()[1:]] == [
        "native (plain)",
        "native (upside_down)",
    ]


def test_each_new_selection_is_logged_once_with_its_rejections(
    registry: Registry, scale: IrOp, add_scale: AddScale, caplog: pytest.LogCaptureFixture
) -> None:
    add_scale("single", supports_args=refuse_doubles)
    registry.priorities.set({"scale": "single"})
    with caplog.at_level(logging.DEBUG, "ir_core.dispatch"):
        for _ in range(3):
            scale(X.double(), None, 1.0)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "scale: rejected `single`: float64 is not supported"),
        ("DEBUG", f"scale: used `native` ({scale.native.location})"),
    ]


def test_a_rejection_nobody_asked_for_is_logged_at_debug(
    registry: Registry, scale: IrOp, add_scale: AddScale, caplog: pytest.LogCaptureFixture
) -> None:
    add_scale("single", supports_args=refuse_doubles)
    platform = registry.platform()
    platform.get_default_ir_op_priority = lambda: {"scale": ["single"]}  # type: ignore[method-assign]
    with caplog.at_level(logging.DEBUG, "ir_core.dispatch"):
        scale(X.double(), None, 1.0)
    assert [each.levelname for each in caplog.records] == ["DEBUG", "DEBUG"]


def test_reasons_that_never_repeat_do_not_pile_up(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("never", supports_args=lambda x, weight, factor, width=None: False)
    registry.priorities.set({"scale": "never"})
    for index in range(1050):
        scale(X, None, float(index))
    rows = registry.selections()
    assert len(rows) == 1001
    assert rows[-1].calls == 50
    assert rows[-1].rejections == (Rejection("never", "for more reasons than are kept"),)
