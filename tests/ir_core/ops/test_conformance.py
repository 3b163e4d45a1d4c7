"""Native, the meaning of every shipped op, passes the suite that it is the measure of."""

import pytest

import ir_core as ir
from ir_core import testing

SHIPPED = (
    "all_gather",
    "all_gather_linear",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "embedding",
    "embedding_w8a16",
    "fused_add_rms_norm",
    "fused_add_rms_norm_quantize_fp8_per_token",
    "fused_add_rms_norm_quantize_fp8_static",
    "fused_add_rms_norm_quantize_int8_per_token",
    "gelu_and_mul",
    "linear",
    "linear_reduce_scatter",
    "linear_w4a16",
    "linear_w8a16",
    "linear_w8a8",
    "paged_attention",
    "qk_norm_rope",
    "quantize_fp8_per_token",
    "quantize_fp8_static",
    "quantize_int8_per_token",
    "reduce_scatter",
    "rms_norm",
    "rms_norm_quantize_fp8_per_token",
    "rms_norm_quantize_fp8_static",
    "rms_norm_quantize_int8_per_token",
    "rotary_embedding",
    "rotary_paged_attention",
    "sample_tokens",
    "silu_and_mul",
    "silu_and_mul_quantize_fp8_per_token",
    "silu_and_mul_quantize_fp8_static",
    "silu_and_mul_quantize_int8_per_token",
)


@pytest.mark.parametrize("name", SHIPPED)
def test_native_conforms(name: str) -> None:
    report = testing.check([getattr(ir.ops, name)], providers=["native"])
    assert report.ok, report.to_text()
    assert report.count(testing.Outcome.UNAVAILABLE) == 0
    assert report.count(testing.Outcome.REJECTED) == 0
    layouts = {each.layout for each in report.findings}
    assert layouts == (set(ir.registry()[name].layouts) if ir.registry()[name].weights else {""})


def test_every_shipped_op_is_listed_here() -> None:
    assert set(ir.ops.__all__) == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_op_has_reasoned_workloads_for_tests_and_benches(name: str) -> None:
    op = ir.registry()[name]
    workloads = testing.workloads_of(op)
    assert len(workloads) > len(testing.STANDARD_WORKLOADS)
    assert all(workload.reason for workload in workloads)
    assert any(workload.bench for workload in workloads)


def test_ops_attribute_of_an_unknown_op_suggests_a_known_one() -> None:
    with pytest.raises(AttributeError, match="did you mean `rms_norm`"):
        _ = ir.ops.rms_nrm


def test_ops_lists_every_registered_op() -> None:
    assert set(ir.registry()) <= set(dir(ir.ops))
