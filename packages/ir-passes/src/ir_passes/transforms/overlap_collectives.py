"""Merges dense projections with the collectives next to them, where a provider can overlap both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

import ir_core as ir
from ir_core import IrOp, NoImplementationError
from ir_core.implementation import NATIVE
from ir_passes.arguments import bound_arguments
from ir_passes.base import MatchRow, Pass, PassContext, PassResult
from ir_passes.dialect import Dialect
from ir_passes.identity import identity_view_of
from ir_passes.location import line_of
from ir_passes.matching.legality import Site
from ir_passes.matching.matcher import Match, match_at
from ir_passes.matching.pattern import call, free
from ir_passes.matching.replacement import replace_match
from ir_passes.matching.rewrite import Rewrite
from ir_passes.printer import GraphPrinter

_X, _WEIGHT, _BIAS, _LAYOUT, _GROUP, _NUM_TOKENS = free(
    "x", "weight", "bias", "layout", "group", "num_tokens"
)
_PRODUCT = call(ir.ops.linear, _X, _WEIGHT, _BIAS, _LAYOUT)
_SCATTERED = call(ir.ops.reduce_scatter, _PRODUCT, _GROUP)
_PROJECTED = call(
    ir.ops.linear, call(ir.ops.all_gather, _X, _NUM_TOKENS, _GROUP), _WEIGHT, _BIAS, _LAYOUT
)
_OPERANDS = _WEIGHT, _BIAS, _LAYOUT, _GROUP
_SCATTER = Rewrite(
    root=_SCATTERED, replace={_SCATTERED: call(ir.ops.linear_reduce_scatter, _X, *_OPERANDS)}
)
_GATHER = Rewrite(
    root=_PROJECTED,
    replace={_PROJECTED: call(ir.ops.all_gather_linear, _X, _NUM_TOKENS, *_OPERANDS)},
)


@dataclass(frozen=True)
class OverlapCollectives(Pass):
    """`reduce_scatter(linear(…))` and `linear(all_gather(…))` become one op each.

    A product that something else reads too stays, and so do gathered rows with more than one
    reader: to give them out as well would undo what the merged op saves. The weight keeps its
    layout, which the merged op names too. A place is left alone where no provider of the merged op
    would reach the other ranks.

    Attributes:
        axis: the logical axis of the ranks.
    """

    name = "overlap_collectives"
    option = "fuse_gemm_comms"

    axis: str = "tp"

    def refusal(self, context: PassContext) -> str | None:
        """One rank has nothing to exchange."""
        if context.axes.get(self.axis, 1) == 1:
            return f"axis `{self.axis}` has one rank"
        return None

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Look at every collective of the axis that deals rows out or gathers them."""
        printer = GraphPrinter(graph, context.dialect)
        rows: list[MatchRow] = []
        for node in list(graph.nodes):
            op = context.dialect.op_of(node)
            if op not in (ir.ops.reduce_scatter, ir.ops.all_gather):
                continue
            if bound_arguments(node)["group"] != self.axis:
                continue
            reason = _merge(graph, node, op is ir.ops.all_gather, context.dialect)
            rows.append(MatchRow(printer.name_of(node), line_of(node), reason))
        return PassResult(sum(row.is_match for row in rows), matches=tuple(rows))


def _merge(graph: Graph, node: Node, gathers: bool, dialect: Dialect) -> str:
    """Merge a collective with its product; "" if that was done, else why not."""
    root, rewrite = (_only_reader(node), _GATHER) if gathers else (node, _SCATTER)
    if isinstance(root, str):
        return root
    if root.target is not rewrite.root.target:
        return f"{_reads(root)} all rows"
    match = match_at(rewrite.root, root)
    if isinstance(match, str):
        return match
    op = ir.ops.all_gather_linear if gathers else ir.ops.linear_reduce_scatter
    return _missing_provider(op, match) or _replace(graph, match, rewrite, dialect)


def _replace(graph: Graph, match: Match, rewrite: Rewrite, dialect: Dialect) -> str:
    site = Site.of(match, rewrite)
    counts, x = _row_counts(match), match.values["x"]
    for product, count in counts:
        count.replace_input_with(product, x)
    reason = site.obstacle() or replace_match(graph, site, dialect)
    if reason is None:
        return ""
    for product, count in counts:
        count.replace_input_with(x, product)
    return reason


def _row_counts(match: Match) -> list[tuple[Node, Node]]:
    """Each product with a node that reads its number of rows only, which is that of `x` too."""
    product = match.nodes.get(_PRODUCT)
    if product is None:
        return []
    counts = [each for each in product.users if each.target is torch.ops.aten.sym_size.int]
    return [(product, each) for each in counts if bound_arguments(each)["dim"] == 0]


def _only_reader(node: Node) -> Node | str:
    """What reads a value, through views that change nothing; the reason if that is not one node."""
    readers = tuple(node.users)
    if len(readers) != 1:
        return f"{len(readers)} nodes read the gathered rows" if readers else "nothing reads them"
    if identity_view_of(readers[0]) is not None:
        return _only_reader(readers[0])
    return readers[0]


def _reads(node: Node) -> str:
    return "the model returns" if node.op == "output" else f"`{node.target}` reads"


def _missing_provider(op: IrOp, match: Match) -> str:
    """Why only native would run the merged op, which reaches no other rank; "" if others would."""
    try:
        selection = op.select(*(match.fake(name) for name in op.schema.names))
    except NoImplementationError as error:
        return str(error)
    if selection.provider != NATIVE:
        return ""
    reasons = "; ".join(f"{each.provider} {each.reason}" for each in selection.rejections)
    return f"no provider of `{op.name}` reaches the ranks: {reasons or 'none is named'}"
