"""Fuses a norm with the quantisation of what it gives."""

from __future__ import annotations

from dataclasses import dataclass

import ir_core as ir
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.transforms.quantized_result import other_provider, quantizing


@dataclass(frozen=True)
class FuseNormQuantize(Fusion):
    """`rms_norm` or `fused_add_rms_norm`, then `quantize_…`, becomes one op of both names.

    The results are the same bit for bit: the op is made of the two others. A norm that something
    else reads, unquantised, is left alone; the residual may have any readers. So is one that the
    kernels which run it would not quantise in the same step.

    It comes behind sequence parallelism, which leaves both side by side on a rank's own rows.
    """

    name = "fuse_norm_quantize"
    option = "fuse_norm_quant"
    is_default = True
    rewrites = (*quantizing(ir.ops.rms_norm), *quantizing(ir.ops.fused_add_rms_norm))

    def objection(self, match: Match) -> str | None:
        """One kernel library does both."""
        return other_provider(match)
