"""Fuses an activation with the quantisation of what it gives."""

from __future__ import annotations

from dataclasses import dataclass

import ir_core as ir
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.transforms.quantized_result import other_provider, quantizing


@dataclass(frozen=True)
class FuseActivationQuantize(Fusion):
    """`silu_and_mul`, then `quantize_…`, becomes one op of both names.

    The results are the same bit for bit: the op is made of the two others. An activation that
    something else reads, unquantised, is left alone, as is one that the kernels which run it would
    not quantise in the same step.
    """

    name = "fuse_activation_quantize"
    option = "fuse_act_quant"
    is_default = True
    rewrites = quantizing(ir.ops.silu_and_mul)

    def objection(self, match: Match) -> str | None:
        """One kernel library does both."""
        return other_provider(match)
