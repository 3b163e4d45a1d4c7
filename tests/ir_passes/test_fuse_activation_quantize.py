"""An activation and the quantisation of what it gives become one op, bit for bit."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_passes.base import PassContext
from ir_passes.config import PassConfig
from ir_passes.default_pipeline import build_pipeline
from ir_passes.report import PassReport
from ir_passes.runner import run_pipeline
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.fuse_activation_quantize import FuseActivationQuantize

from .graphs import calls, check_golden, trace
from .quantized_results import KINDS, fuse, one_step_library, quantize

SILU, TO_INT8 = ir.ops.silu_and_mul, ir.ops.quantize_int8_per_token
SHAPES, NAMES = (("T", 16), (8,)), "x w"

Model = Callable[[Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    with one_step_library():
        yield


def _fuse(model: Model, dtype: torch.dtype = torch.float32) -> tuple[WholeGraph, PassReport]:
    return fuse(FuseActivationQuantize(), model, SHAPES, NAMES, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_result_is_the_same_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    whole, report = _fuse(lambda x, w: quantize(kind, SILU(x)), dtype)
    assert report.result.changed == 1
    assert calls(whole.module)[-1] == f"silu_and_mul_quantize_{kind}"
    assert "silu_and_mul" not in calls(whole.module)


def _read_elsewhere(x: Tensor, w: Tensor) -> Any:
    active = SILU(x)
    return *TO_INT8(active), active.sum(-1)


MISSES: dict[str, tuple[Model, str]] = {
    "activation read elsewhere": (_read_elsewhere, "`silu_and_mul` is also used by `sum_1`"),
    "another activation": (
        lambda x, w: TO_INT8(ir.ops.gelu_and_mul(x)),
        "`x` is made by `ir.gelu_and_mul`, not by `ir.silu_and_mul`",
    ),
    "scaled activation": (
        lambda x, w: TO_INT8(SILU(x) * w),
        "`x` is made by `aten.mul`, not by `ir.silu_and_mul`",
    ),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason_and_changes_nothing(model: Model, reason: str) -> None:
    whole, report = _fuse(model)
    assert report.result.changed == 0
    assert report.near_misses[0].reason == reason
    assert "silu_and_mul_quantize_int8_per_token" not in calls(whole.module)


def test_kernels_that_do_not_do_both_are_a_reason() -> None:
    with ir.priority({"silu_and_mul_quantize_int8_per_token": ["native"]}):
        whole, report = _fuse(lambda x, w: TO_INT8(SILU(x)))
    assert [each.reason for each in report.near_misses] == [
        "`one_step` would run `silu_and_mul`, and `native` would quantise in the same step"
    ]
    assert calls(whole.module) == ["silu_and_mul", "quantize_int8_per_token"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (PassConfig(), ["silu_and_mul_quantize_int8_per_token"]),
        (PassConfig(fuse_act_quant=False), ["silu_and_mul", "quantize_int8_per_token"]),
    ],
    ids=["default", "off"],
)
def test_default_pipeline_fuses_unless_told_not_to(config: PassConfig, names: list[str]) -> None:
    whole = trace(lambda x, w: TO_INT8(SILU(x)), *SHAPES)
    run_pipeline(build_pipeline(config), whole.module, PassContext())
    assert calls(whole.module) == names


def test_text_before_and_after() -> None:
    def model(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        active = SILU(x * 2)
        static = ir.ops.quantize_fp8_static(SILU(x), w[:1])
        return *TO_INT8(active), static, *TO_INT8(ir.ops.gelu_and_mul(x))

    whole, report = _fuse(model)
    assert report.result.changed == 2
    check_golden("fuse_activation_quantize_after", whole.module)
    check_golden("fuse_activation_quantize_before", trace(model, *SHAPES, names=NAMES).module)
