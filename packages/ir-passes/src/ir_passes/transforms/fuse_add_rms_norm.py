"""Fuses a residual add with the norm that follows it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ir_core as ir
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import call, free
from ir_passes.matching.rewrite import Rewrite
from ir_passes.metadata import difference, is_known_shape

_X, _RESIDUAL, _WEIGHT, _EPSILON, _SIZE = free(
    "x", "x_residual", "weight", "epsilon", "variance_size"
)
_SUM = call(torch.ops.aten.add.Tensor, _X, _RESIDUAL)
_NORM = call(ir.ops.rms_norm, _SUM, _WEIGHT, _EPSILON, _SIZE)
_FUSED = call(ir.ops.fused_add_rms_norm, _X, _RESIDUAL, _WEIGHT, _EPSILON, _SIZE)


@dataclass(frozen=True)
class FuseAddRmsNorm(Fusion):
    """`s = x + x_residual; rms_norm(s, …)` becomes `fused_add_rms_norm(x, x_residual, …)`.

    The results are the same bit for bit: the op forms the sum as `add` does. The sum may have other
    users. Terms that are broadcast or of two dtypes are left alone, since the op takes neither.
    """

    name = "fuse_add_rms_norm"
    rewrites = (Rewrite(root=_NORM, replace={_NORM: _FUSED[0], _SUM: _FUSED[1]}),)

    def objection(self, match: Match) -> str | None:
        """The op adds two tensors of one shape and dtype."""
        x, residual = match.fake("x"), match.fake("x_residual")
        if not isinstance(x, torch.Tensor) or not isinstance(residual, torch.Tensor):
            return "a number is added"
        if x.dtype != residual.dtype or not is_known_shape(x, residual):
            return f"the terms differ: {difference(x, residual)}"
        return None
