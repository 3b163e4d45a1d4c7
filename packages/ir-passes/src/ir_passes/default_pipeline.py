"""The passes that ship, in order, and the pipeline that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ir_core import PluginError
from ir_passes.base import Pass
from ir_passes.config import PassConfig
from ir_passes.errors import PipelineError
from ir_passes.pipeline import Entry, Pipeline
from ir_passes.plugins import Addition
from ir_passes.transforms.eliminate_noops import EliminateNoops
from ir_passes.transforms.fuse_activation_quantize import FuseActivationQuantize
from ir_passes.transforms.fuse_add_rms_norm import FuseAddRmsNorm
from ir_passes.transforms.fuse_all_reduce_add_rms_norm import FuseAllReduceAddRmsNorm
from ir_passes.transforms.fuse_norm_quantize import FuseNormQuantize
from ir_passes.transforms.fuse_qk_norm_rope import FuseQkNormRope
from ir_passes.transforms.fuse_rotary_attention import FuseRotaryAttention
from ir_passes.transforms.overlap_collectives import OverlapCollectives
from ir_passes.transforms.shard_sequence import ShardSequence

PASSES: tuple[Pass, ...] = (
    EliminateNoops(),
    FuseQkNormRope(),
    FuseAddRmsNorm(),
    FuseRotaryAttention(),
    ShardSequence(),
    OverlapCollectives(),
    FuseAllReduceAddRmsNorm(),
    FuseNormQuantize(),
    FuseActivationQuantize(),
)
"""Wider fusions come before those whose pattern is a part of theirs; what is fused is sharded."""


def build_pipeline(
    config: PassConfig, additions: Iterable[Addition] = (), passes: Iterable[Pass] = PASSES
) -> Pipeline:
    """The passes of a configuration: those that ship, then plug-ins', then what its fields say.

    `disable` beats `enable`; `order` and `limit` come last.

    Raises:
        PipelineError: a field names a pass that is not there.
        PluginError: a plug-in's pass takes a name or names a place that is not there.
    """
    pipeline = Pipeline.of(*(_with_options(each, config) for each in passes))
    for addition in additions:
        pipeline = _add(pipeline, addition)
    for entry in pipeline:
        pipeline = _apply_option(pipeline, entry, config)
    for name in config.enable:
        pipeline = pipeline.enable(name, "pass_config.enable")
    pipeline = pipeline.disable(config.disable, "pass_config.disable")
    pipeline = pipeline.reorder(config.order)
    return pipeline if config.limit is None else pipeline.limit(config.limit)


def unserved_options(config: PassConfig, pipeline: Pipeline) -> tuple[str, ...]:
    """Options of a configuration that are on although no pass of the pipeline has them."""
    served = {entry.step.option for entry in pipeline}
    fields = (name for name, value in config if value is True and name != "verify_each")
    return tuple(name for name in fields if name not in served)


def _with_options(step: Pass, config: PassConfig) -> Pass:
    if isinstance(step, ShardSequence) and config.sp_min_token_num is not None:
        return replace(step, min_tokens=config.sp_min_token_num)
    return step


def _add(pipeline: Pipeline, addition: Addition) -> Pipeline:
    entry = Entry(addition.step, addition.origin or "plug-in")
    try:
        pipeline = pipeline.add(entry, before=addition.before, after=addition.after)
    except PipelineError as error:
        raise PluginError(
            f"Pass `{entry.name}` of `{entry.requested_by}` cannot be added: {error}"
        ) from error
    if addition.is_enabled:
        return pipeline
    return pipeline.disable([entry.name], "it runs only where `pass_config.enable` names it")


def _apply_option(pipeline: Pipeline, entry: Entry, config: PassConfig) -> Pipeline:
    option = entry.step.option
    if option is None:
        return pipeline
    value: object = getattr(config, option)
    if value is True:
        return pipeline.enable(entry.name, f"pass_config.{option}")
    if value is None and entry.step.is_default:
        return pipeline
    reason = f"pass_config.{option} is {'off' if value is False else 'not on'}"
    return pipeline.disable([entry.name], reason)
