"""Fuses a sum over the ranks with the residual add and norm that follow it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import ir_core as ir
from ir_core import IrOp
from ir_core.implementation import NATIVE
from ir_core.priority_lists import USER
from ir_passes.base import PassContext
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import Call, call, free
from ir_passes.matching.rewrite import Rewrite
from ir_passes.metadata import difference, is_known_shape

_X, _RESIDUAL, _GROUP = free("x", "x_residual", "group")
_NORM = free("weight", "epsilon", "variance_size")
_SUM = call(ir.ops.all_reduce, _X, _GROUP)
_FUSED = call(ir.ops.all_reduce_add_rms_norm, _X, _RESIDUAL, *_NORM, _GROUP)


def _becoming_fused(normed: Call) -> Rewrite:
    return Rewrite(root=normed, replace={normed[0]: _FUSED[0], normed[1]: _FUSED[1]})


@dataclass(frozen=True)
class FuseAllReduceAddRmsNorm(Fusion):
    """`fused_add_rms_norm` of an `all_reduce` becomes `all_reduce_add_rms_norm`.

    The sum is rounded as `all_reduce` rounds it, and terms of one dtype may be added in either
    order, so it may be either of them. A sum that something else reads is left alone, as is one
    that a norm follows without an add: no op does that. So is one whose provider does not do both
    in one step, and one where somebody named a provider for the norm: that is who computes it.
    Sequence parallelism goes first, and leaves what does not shard.

    Attributes:
        axis: the logical axis of the ranks.
    """

    name = "fuse_all_reduce_add_rms_norm"
    option = "fuse_allreduce_rms"
    is_default = True
    rewrites = (
        _becoming_fused(call(ir.ops.fused_add_rms_norm, _SUM, _RESIDUAL, *_NORM)),
        _becoming_fused(call(ir.ops.fused_add_rms_norm, _RESIDUAL, _SUM, *_NORM)),
    )

    axis: str = "tp"

    def refusal(self, context: PassContext) -> str | None:
        """The sum of one rank is its own value."""
        if context.axes.get(self.axis, 1) == 1:
            return f"axis `{self.axis}` has one rank"
        return None

    def objection(self, match: Match) -> str | None:
        """The op sums over this axis, by the same provider, and adds a tensor of the same kind."""
        x, residual, axis = (match.fake(name) for name in ("x", "x_residual", "group"))
        if axis != self.axis:
            return f"the sum is over axis `{axis}`, not `{self.axis}`"
        if match.values["x_residual"] in (*match.nodes.values(), *match.views):
            return "the sum is added to itself"
        if not isinstance(x, Tensor) or not isinstance(residual, Tensor):
            return "a number is added"
        if x.dtype != residual.dtype or not is_known_shape(x, residual):
            return f"the terms differ: {difference(x, residual)}"
        return _other_provider(match)


def _other_provider(match: Match) -> str | None:
    """Who was asked for, or would sum, where that is not who would do it all."""
    norm = _named(ir.ops.fused_add_rms_norm)
    if norm is not None and _named(ir.ops.all_reduce_add_rms_norm) is None:
        return f"`{norm}` was asked for the norm"
    sums, does_all = (
        op.select(*(match.fake(name) for name in op.schema.names)).provider
        for op in (ir.ops.all_reduce, ir.ops.all_reduce_add_rms_norm)
    )
    if sums == does_all != NATIVE:
        return None
    return f"`{sums}` would sum, and `{does_all}` would do it all in one step"


def _named(op: IrOp) -> str | None:
    """The provider that was named first for an op, by a flag or in code."""
    entries = op.registry.priorities.resolve(op).entries
    return next((entry.provider for entry in entries if entry.source == USER), None)
