"""Rewrites that quantise an op's first result in the op itself. Decides no order of passes."""

from __future__ import annotations

import ir_core as ir
from ir_core import IrOp
from ir_core.implementation import NATIVE
from ir_passes.matching.matcher import Match
from ir_passes.matching.pattern import Free, Value, call
from ir_passes.matching.rewrite import Rewrite

QUANTIZE = (
    ir.ops.quantize_fp8_static,
    ir.ops.quantize_fp8_per_token,
    ir.ops.quantize_int8_per_token,
)
"""The ops that quantise activations; each has a fused form behind every norm and activation."""


def quantizing(first: IrOp) -> tuple[Rewrite, ...]:
    """For each way to quantise: `quantize(first(…))` becomes `<first>_<quantize>(…)`."""
    return tuple(_quantized(first, quantize) for quantize in QUANTIZE)


def other_provider(match: Match) -> str | None:
    """Who would run the op and who would do it all, where these are not one kernel library."""
    quantize, first = (ir.registry()[node.target._opname] for node in match.nodes.values())  # type: ignore[union-attr]
    fused = _fused(first, quantize)
    runs, does_all = (
        op.select(*(match.fake(name) for name in op.schema.names)).provider for op in (first, fused)
    )
    if runs == does_all != NATIVE:
        return None
    return f"`{runs}` would run `{first.name}`, and `{does_all}` would quantise in the same step"


def _quantized(first: IrOp, quantize: IrOp) -> Rewrite:
    fused = _fused(first, quantize)
    made = call(first, *map(Free, first.schema.names))
    value: Value = made[0] if len(first.schema.returns) > 1 else made
    root = call(quantize, value, *map(Free, quantize.schema.names[1:]))
    becomes = call(fused, *map(Free, fused.schema.names))
    if len(fused.schema.returns) == 1:
        return Rewrite(root, {root: becomes})
    count = len(quantize.schema.returns)
    parts: tuple[Value, ...] = (root,) if count == 1 else tuple(root[at] for at in range(count))
    others = tuple(made[at] for at in range(1, len(first.schema.returns)))
    return Rewrite(root, {old: becomes[at] for at, old in enumerate((*parts, *others))})


def _fused(first: IrOp, quantize: IrOp) -> IrOp:
    return ir.registry()[f"{first.name}_{quantize.name}"]
