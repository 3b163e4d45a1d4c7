"""Fuses the rotation of query and key heads with the attention that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ir_core as ir
from ir_core.errors import NoImplementationError
from ir_core.implementation import NATIVE
from ir_passes.base import PassContext
from ir_passes.matching.fusion import Fusion
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import Free, call
from ir_passes.matching.rewrite import Rewrite
from ir_passes.metadata import is_known_equal

_ATTENTION, _FUSED = ir.ops.paged_attention, ir.ops.rotary_paged_attention
_ROTATIONS = (ir.ops.rotary_embedding, ir.ops.qk_norm_rope)


def _attending(rotation: ir.IrOp) -> Rewrite:
    """Attention to the heads that an op turns, with the arguments of both."""
    turned = call(rotation, *map(Free, rotation.schema.names))
    names = _ATTENTION.schema.names
    attention = call(_ATTENTION, turned[0], turned[1], *map(Free, names[2:]))
    known = {*rotation.schema.names, *names}
    given: dict[str, Any] = {name: Free(name) for name in _FUSED.schema.names if name in known}
    return Rewrite(attention, {attention: call(_FUSED, **given)})


@dataclass(frozen=True)
class FuseRotaryAttention(Fusion):
    """`paged_attention` of a `rotary_embedding` or `qk_norm_rope` is `rotary_paged_attention`.

    Outputs and cache are the same bit for bit: the op is made of the two others. Heads that
    something else reads, turned, stay as they are, and so do those for which the two ops and what
    they become are not all run by one kernel library.
    """

    name = "fuse_rotary_attention"
    option = "fuse_rope_kvcache"
    is_default = True
    rewrites = tuple(map(_attending, _ROTATIONS))

    def refusal(self, context: PassContext) -> str | None:
        """The graph must be split at both ops or at neither, or attention would join a piece."""
        splits = (context.dialect.splits_at(op.torch_op) for op in (_ATTENTION, _FUSED))
        if len(set(splits)) == 1:
            return None
        return f"`splitting_ops` names one of `{_ATTENTION.name}` and `{_FUSED.name}`, not both"

    def objection(self, match: Match) -> str | None:
        """Whole heads are turned, and one kernel library does both."""
        query, size = match.fake("x_query"), match.fake("head_size")
        if query.dim() != 3 or not is_known_equal(query.shape[-1], size):
            return f"`x_query` {tuple(query.shape)} does not have heads of {size}"
        (rotation,) = (op for op in _ROTATIONS if op.torch_op in _targets(match))
        providers = {op.name: _provider(op, match) for op in (rotation, _ATTENTION, _FUSED)}
        if len(set(providers.values())) == 1 and NATIVE not in providers.values():
            return None
        would = ", ".join(f"`{provider}` `{name}`" for name, provider in providers.items())
        return f"no one library runs it all: {would}"


def _targets(match: Match) -> set[Any]:
    return {node.target for node in match.nodes.values()}


def _provider(op: ir.IrOp, match: Match) -> str:
    given = {name: match.fake(name) for name in op.schema.names if name in match.values}
    try:
        return op.select(**given).provider
    except NoImplementationError:  # under batch invariance, for one
        return "nobody's"
