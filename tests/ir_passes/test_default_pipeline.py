"""A configuration decides by name which passes run, in which order, and who is told."""

import pytest

from ir_core import PluginError
from ir_passes.config import PassConfig
from ir_passes.default_pipeline import PASSES, build_pipeline, unserved_options
from ir_passes.errors import PipelineError
from ir_passes.pipeline import Entry
from ir_passes.plugins import Addition
from ir_passes.report import Effect
from ir_passes.transforms.shard_sequence import ShardSequence

from .passes import DoubleToSum, OnManyRanks, named

NAMES = tuple(each.name for each in PASSES)
FUSIONS = (
    "fuse_qk_norm_rope → fuse_add_rms_norm → fuse_rotary_attention → "
    "fuse_all_reduce_add_rms_norm → fuse_norm_quantize → fuse_activation_quantize"
)


def test_default_is_the_shipped_passes_in_order() -> None:
    pipeline = build_pipeline(PassConfig())
    fusions = ("fuse_qk_norm_rope", "fuse_add_rms_norm", "fuse_rotary_attention")
    of_ranks = ("shard_sequence", "overlap_collectives", "fuse_all_reduce_add_rms_norm")
    of_quantisation = ("fuse_norm_quantize", "fuse_activation_quantize")
    assert pipeline.names == NAMES == ("eliminate_noops", *fusions, *of_ranks, *of_quantisation)
    disabled = [entry.name for entry in pipeline if not entry.is_enabled]
    assert disabled == ["shard_sequence", "overlap_collectives"]
    assert not any(entry.is_wanted for entry in pipeline)
    assert pipeline.conflicts() == ()


def test_fields_disable_order_and_limit_by_name() -> None:
    assert str(build_pipeline(PassConfig(disable=("eliminate_noops",)))) == FUSIONS
    assert str(build_pipeline(PassConfig(limit=1))) == "eliminate_noops"
    order = ("fuse_add_rms_norm", "eliminate_noops", "fuse_qk_norm_rope")
    assert build_pipeline(PassConfig(order=order)).names == (*order, *NAMES[3:])


@pytest.mark.parametrize("field", ["enable", "disable", "order"])
def test_unknown_pass_is_an_error_with_a_suggestion(field: str) -> None:
    config = PassConfig.model_validate({field: ("eliminate_noop",)})
    with pytest.raises(PipelineError, match="did you mean `eliminate_noops`"):
        build_pipeline(config)


def test_disable_beats_enable() -> None:
    config = PassConfig(enable=NAMES, disable=NAMES[:2])
    assert str(build_pipeline(config)) == " → ".join(NAMES[2:])


def test_option_turns_its_pass_on_and_off() -> None:
    passes = (OnManyRanks(),)
    off = build_pipeline(PassConfig(), passes=passes).entries[0]
    assert (off.effect, off.reason) == (Effect.DISABLED, "pass_config.enable_sp is not on")
    on = build_pipeline(PassConfig(enable_sp=True), passes=passes).entries[0]
    assert (on.is_wanted, on.requested_by) == (True, "pass_config.enable_sp")
    refused = build_pipeline(PassConfig(enable_sp=False), passes=passes).entries[0]
    assert refused.reason == "pass_config.enable_sp is off"


def test_option_of_a_default_pass_turns_it_off_or_asks_for_it() -> None:
    def entry(value: bool | None) -> Entry:
        config = PassConfig(enable_qk_norm_rope_fusion=value)
        return next(each for each in build_pipeline(config) if each.name == "fuse_qk_norm_rope")

    unasked, asked, refused = entry(None), entry(True), entry(False)
    assert (unasked.is_enabled, unasked.is_wanted) == (True, False)
    assert (asked.is_enabled, asked.is_wanted) == (True, True)
    assert (refused.is_enabled, refused.reason) == (
        False,
        "pass_config.enable_qk_norm_rope_fusion is off",
    )


def test_option_that_no_pass_serves_is_named() -> None:
    config = PassConfig(enable_sp=True, fuse_norm_quant=True, verify_each=True)
    assert unserved_options(config, build_pipeline(config)) == ()
    only_one = build_pipeline(config, passes=(OnManyRanks(),))
    assert unserved_options(config, only_one) == ("fuse_norm_quant",)
    none = build_pipeline(config, passes=(DoubleToSum(),))
    assert unserved_options(config, none) == ("fuse_norm_quant", "enable_sp")


def test_products_overlap_with_collectives_only_where_that_is_asked_for() -> None:
    def entry(config: PassConfig) -> Entry:
        return next(each for each in build_pipeline(config) if each.name == "overlap_collectives")

    assert entry(PassConfig()).reason == "pass_config.fuse_gemm_comms is not on"
    assert entry(PassConfig(fuse_gemm_comms=True)).requested_by == "pass_config.fuse_gemm_comms"


def test_threshold_of_sequence_parallelism_reaches_its_pass() -> None:
    config = PassConfig(enable_sp=True, sp_min_token_num=8)
    steps = [entry.step for entry in build_pipeline(config)]
    assert ShardSequence(min_tokens=8) in steps


def test_plugin_pass_has_its_place_its_origin_and_its_switch() -> None:
    additions = (
        Addition(DoubleToSum(), before="fuse_add_rms_norm", origin="toy"),
        Addition(named("shy"), is_enabled=False, origin="toy"),
    )
    pipeline = build_pipeline(PassConfig(), additions)
    assert pipeline.names == (*NAMES[:2], "double_to_sum", *NAMES[2:], "shy")
    assert " → double_to_sum → fuse_add_rms_norm → " in str(pipeline)
    assert pipeline.entries[2].requested_by == "toy"
    shy = build_pipeline(PassConfig(enable=("shy",)), additions).entries[-1]
    assert (shy.is_enabled, shy.is_wanted) == (True, True)


def test_plugin_pass_without_a_place_names_its_distribution() -> None:
    with pytest.raises(PluginError, match="`double_to_sum` of `toy` cannot be added: No pass `x`"):
        build_pipeline(PassConfig(), (Addition(DoubleToSum(), after="x", origin="toy"),))
    with pytest.raises(PluginError, match=r"`eliminate_noops` of `toy` .* twice"):
        build_pipeline(PassConfig(), (Addition(named("eliminate_noops"), origin="toy"),))
