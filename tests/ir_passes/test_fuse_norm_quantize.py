"""A norm and the quantisation of what it gives become one op, bit for bit, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_passes.arguments import bound_arguments
from ir_passes.base import PassContext
from ir_passes.config import PassConfig
from ir_passes.default_pipeline import build_pipeline
from ir_passes.dialect import Dialect
from ir_passes.report import PassReport
from ir_passes.runner import RunOptions, run_pipeline
from ir_passes.tracing.whole_graph import WholeGraph
from ir_passes.transforms.fuse_norm_quantize import FuseNormQuantize

from .graphs import calls, check_golden, node_calling, trace
from .quantized_results import KINDS, fuse, one_step_library, quantize

NORM, ADD_NORM = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
TO_INT8 = ir.ops.quantize_int8_per_token
SHAPES, NAMES = (("T", 8), ("T", 8), (8,)), "x r w"

Model = Callable[[Tensor, Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    with one_step_library():
        yield


def _fuse(model: Model, dtype: torch.dtype = torch.float32) -> tuple[WholeGraph, PassReport]:
    return fuse(FuseNormQuantize(), model, SHAPES, NAMES, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_is_the_same_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    whole, report = _fuse(lambda x, r, w: quantize(kind, NORM(x, w, 1e-5)), dtype)
    assert report.result.changed == 1
    assert calls(whole.module)[-1] == f"rms_norm_quantize_{kind}"
    assert "rms_norm" not in calls(whole.module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_residual_goes_on_beside_the_quantised_norm(kind: str, dtype: torch.dtype) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        normal, residual = ADD_NORM(x, r, w, 1e-5)
        return (*quantize(kind, normal), residual, residual * 2)

    whole, report = _fuse(model, dtype)
    assert report.result.changed == 1
    assert f"fused_add_rms_norm_quantize_{kind}" in calls(whole.module)
    assert "fused_add_rms_norm" not in calls(whole.module)


SPELLINGS: dict[str, Model] = {
    "keywords": lambda x, r, w: TO_INT8(x=NORM(weight=w, epsilon=1e-5, x=x, variance_size=None)),
    "no weight": lambda x, r, w: TO_INT8(NORM(x, None, 0.5)),
    "weight of another dtype": lambda x, r, w: TO_INT8(NORM(x, w.double(), 1e-5)),
    "part of the row": lambda x, r, w: TO_INT8(NORM(x, w, 1e-5, 4)),
    "a view in between": lambda x, r, w: TO_INT8(NORM(x, w, 1e-5).view(-1, 8)),
    "only the scale is read": lambda x, r, w: TO_INT8(NORM(x, w, 1e-5))[1],
    "the residual is not read": lambda x, r, w: TO_INT8(ADD_NORM(x, r, w, 1e-5)[0]),
    "donated": lambda x, r, w: TO_INT8(ADD_NORM.maybe_inplace(x + 1, r * 2, w, 1e-5)[0]),
    "the caller's residual is donated": lambda x, r, w: TO_INT8(
        ADD_NORM.maybe_inplace(x + 1, r, w, 1e-5)[0]
    ),
}


@pytest.mark.parametrize("model", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_matches_and_computes_the_same(model: Model) -> None:
    whole, report = _fuse(model)
    assert report.result.changed == 1
    assert {"rms_norm", "fused_add_rms_norm", "quantize_int8_per_token"}.isdisjoint(
        calls(whole.module)
    )


def test_each_norm_keeps_its_own_constants() -> None:
    constants = [(1e-5, None), (1e-6, 4), (0.5, None)]

    def model(x: Tensor, r: Tensor, w: Tensor) -> list[Tensor]:
        rows = [TO_INT8(NORM(x * at, w, *each)) for at, each in enumerate(constants, 1)]
        return [each for row in rows for each in row]

    whole, report = _fuse(model)
    assert report.result.changed == 3
    op = ir.ops.rms_norm_quantize_int8_per_token.torch_op
    given = [bound_arguments(node) for node in whole.module.graph.nodes if node.target is op]
    assert [(each["epsilon"], each["variance_size"]) for each in given] == constants


def test_scale_of_a_static_quantisation_is_kept() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return ir.ops.quantize_fp8_static(NORM(x, w, 1e-5), w[:1] * w[:1])

    whole, _ = _fuse(model)
    scale = bound_arguments(node_calling(whole.module, "rms_norm_quantize_fp8_static"))["scale"]
    assert scale.target is torch.ops.aten.mul.Tensor


def _read_elsewhere(x: Tensor, r: Tensor, w: Tensor) -> Any:
    normal = NORM(x, w, 1e-5)
    return *TO_INT8(normal), normal


def _fused_add_read_elsewhere(x: Tensor, r: Tensor, w: Tensor) -> Any:
    normal, residual = ADD_NORM(x, r, w, 1e-5)
    return *TO_INT8(normal), normal + 1, residual


def _quantised_twice(x: Tensor, r: Tensor, w: Tensor) -> Any:
    normal = NORM(x, w, 1e-5)
    return *TO_INT8(normal), *ir.ops.quantize_fp8_per_token(normal)


MISSES: dict[str, tuple[Model, str]] = {
    "norm read elsewhere": (_read_elsewhere, "`rms_norm` is also used by `output`"),
    "norm beside a residual read elsewhere": (_fused_add_read_elsewhere, "is also used by `add`"),
    "quantised twice": (_quantised_twice, "`rms_norm` is also used by `quantize_fp8_per_token`"),
    "the residual is quantised": (
        lambda x, r, w: TO_INT8(ADD_NORM(x, r, w, 1e-5)[1]),
        "`x` is output 1, not `ir.fused_add_rms_norm[0]`",
    ),
    "something in between": (
        lambda x, r, w: TO_INT8(NORM(x, w, 1e-5) * 2),
        "`x` is made by `aten.mul`, not by `ir.rms_norm`",
    ),
    "another row": (
        lambda x, r, w: TO_INT8(NORM(x, w, 1e-5).view(-1, 4)),
        "`x` is made by `aten.view`, not by `ir.rms_norm`",
    ),
    "no norm": (lambda x, r, w: TO_INT8(x), "`x` is made by `an input`, not by `ir.rms_norm`"),
}


@pytest.mark.parametrize(("model", "reason"), MISSES.values(), ids=MISSES.keys())
def test_near_miss_has_a_reason_and_changes_nothing(model: Model, reason: str) -> None:
    whole, report = _fuse(model)
    assert report.result.changed == 0
    assert reason in report.near_misses[0].reason
    assert not any("norm_quantize" in name for name in calls(whole.module))


@pytest.mark.parametrize(
    ("priority", "reason"),
    [
        (
            {"rms_norm_quantize_int8_per_token": ["native"]},
            "`one_step` would run `rms_norm`, and `native` would quantise in the same step",
        ),
        (
            {"rms_norm": ["native"]},
            "`native` would run `rms_norm`, and `one_step` would quantise in the same step",
        ),
        (
            {"rms_norm": ["native"], "rms_norm_quantize_int8_per_token": ["native"]},
            "`native` would run `rms_norm`, and `native` would quantise in the same step",
        ),
    ],
    ids=["nobody does it in one step", "another provider is wanted for the norm", "native does"],
)
def test_kernels_that_do_not_do_both_are_a_reason(
    priority: dict[str, list[str]], reason: str
) -> None:
    with ir.priority(priority):
        whole, report = _fuse(lambda x, r, w: TO_INT8(NORM(x, w, 1e-5)))
    assert [each.reason.partition(";")[0] for each in report.near_misses] == [reason]
    assert calls(whole.module) == ["rms_norm", "quantize_int8_per_token"]


def _layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    total = x + r
    return *TO_INT8(NORM(total, w, 1e-5)), total


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (PassConfig(), ["fused_add_rms_norm_quantize_int8_per_token"]),
        (PassConfig(fuse_norm_quant=False), ["fused_add_rms_norm", "quantize_int8_per_token"]),
    ],
    ids=["default", "off"],
)
def test_default_pipeline_fuses_after_the_add(config: PassConfig, names: list[str]) -> None:
    whole = trace(_layer, *SHAPES)
    run_pipeline(build_pipeline(config), whole.module, PassContext())
    assert calls(whole.module) == names


@pytest.mark.parametrize(
    ("kind", "num_gathers"), [("fp8_static", 1), ("fp8_per_token", 2), ("int8_per_token", 2)]
)
def test_norm_and_quantisation_are_one_op_on_the_shard(kind: str, num_gathers: int) -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return quantize(kind, ADD_NORM(ir.ops.all_reduce(x), ir.ops.all_reduce(r), w, 1e-5)[0])

    with scoped_groups(Group("tp", 0, 2)):
        whole = trace(model, *SHAPES)
        context = PassContext(Dialect(), axes={"tp": 2})
        pipeline = build_pipeline(PassConfig(enable_sp=True))
        report = run_pipeline(pipeline, whole.module, context, RunOptions(verify_each=True))
    assert report.of("shard_sequence").result.changed == 2
    found = [name for name in calls(whole.module) if name not in ("sym_size", "full")]
    assert found == [
        "reduce_scatter",
        "reduce_scatter",
        f"fused_add_rms_norm_quantize_{kind}",
        *["all_gather"] * num_gathers,
    ]


def test_text_before_and_after() -> None:
    def model(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        q, scale = TO_INT8(NORM(x, w, 1e-5))
        normal, r = ADD_NORM(x, r, None, 1e-6, 4)
        static = ir.ops.quantize_fp8_static(normal, w[:1])
        return q, scale, static, r, *ir.ops.quantize_fp8_per_token(r)

    whole, report = _fuse(model)
    assert report.result.changed == 2
    check_golden("fuse_norm_quantize_after", whole.module)
    check_golden("fuse_norm_quantize_before", trace(model, *SHAPES, names=NAMES).module)
