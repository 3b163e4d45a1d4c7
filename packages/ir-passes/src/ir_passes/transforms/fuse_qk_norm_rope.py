"""Fuses the norms of query and key heads with the rotary embedding that follows them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import ir_core as ir
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import call, free
from ir_passes.matching.rewrite import Rewrite
from ir_passes.metadata import is_known_equal

_QUERY, _KEY, _QUERY_WEIGHT, _KEY_WEIGHT, _EPSILON = free(
    "x_query", "x_key", "query_weight", "key_weight", "epsilon"
)
_ROTATION = free("positions", "cos_sin_cache", "head_size", "is_neox")
_ROTATED = call(
    ir.ops.rotary_embedding,
    call(ir.ops.rms_norm, _QUERY, _QUERY_WEIGHT, _EPSILON),
    call(ir.ops.rms_norm, _KEY, _KEY_WEIGHT, _EPSILON),
    *_ROTATION,
)
_FUSED = call(ir.ops.qk_norm_rope, _QUERY, _KEY, _QUERY_WEIGHT, _KEY_WEIGHT, _EPSILON, *_ROTATION)


@dataclass(frozen=True)
class FuseQkNormRope(Fusion):
    """`rotary_embedding(rms_norm(q), rms_norm(k), …)` becomes `qk_norm_rope(q, k, …)`.

    The results are the same bit for bit: the op is made of the two others. Both norms are over
    whole heads of `[T, heads, head_size]`, have a weight, and share one epsilon. They stay where
    something else reads what they give.
    """

    name = "fuse_qk_norm_rope"
    option = "enable_qk_norm_rope_fusion"
    is_default = True
    rewrites = (Rewrite(root=_ROTATED, replace={_ROTATED[0]: _FUSED[0], _ROTATED[1]: _FUSED[1]}),)

    def objection(self, match: Match) -> str | None:
        """The op normalises every head, with a weight."""
        for name in ("query", "key"):
            if not isinstance(match.fake(f"{name}_weight"), Tensor):
                return f"the norm of `x_{name}` has no weight"
            x, size = match.fake(f"x_{name}"), match.fake("head_size")
            if x.dim() != 3 or not is_known_equal(x.shape[-1], size):
                return f"`x_{name}` {tuple(x.shape)} is not normalised by heads of {size}"
        return None
