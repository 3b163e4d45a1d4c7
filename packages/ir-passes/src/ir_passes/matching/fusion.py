"""The base of fusions: passes that are one or more rewrites and a reason to leave a match alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Graph, Node

from ir_passes.base import MatchRow, Pass, PassContext, PassResult
from ir_passes.dialect import Dialect
from ir_passes.location import line_of
from ir_passes.matching.legality import Site
from ir_passes.matching.matcher import Match, match_at
from ir_passes.matching.replacement import replace_match
from ir_passes.matching.rewrite import Rewrite
from ir_passes.printer import GraphPrinter


@dataclass(frozen=True)
class Fusion(Pass):
    """A pass that replaces what its rewrites match; every node that looks like a root has a row.

    Attributes:
        rewrites: tried in this order at every node; the first that can be done wins.
    """

    rewrites: ClassVar[tuple[Rewrite, ...]]

    def objection(self, match: Match) -> str | None:
        """Why this match must stay as it is, by what the ops mean; None if it may be replaced."""
        return None

    def takes_from(self, later: Pass) -> bool:
        """Whether a pattern of this pass is part of one of the later pass."""
        return isinstance(later, Fusion) and any(
            wide.contains(narrow) for wide in later.rewrites for narrow in self.rewrites
        )

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Try every rewrite at every node, in order."""
        printer = GraphPrinter(graph, context.dialect)
        rows: list[MatchRow] = []
        for node in list(graph.nodes):
            if node._erased:
                continue
            reason = self._try(graph, node, context.dialect)
            if reason is not None:
                rows.append(MatchRow(printer.name_of(node), line_of(node), reason))
        return PassResult(sum(row.is_match for row in rows), matches=tuple(rows))

    def _try(self, graph: Graph, node: Node, dialect: Dialect) -> str | None:
        """What came of a node: "" if it was replaced, a reason if not, None if it is no root."""
        reasons: list[str] = []
        for rewrite in self.rewrites:
            if node.target is not rewrite.root.target:
                continue
            reason = self._replace(graph, node, rewrite, dialect)
            if reason is None:
                return ""
            reasons.append(reason)
        return "; ".join(dict.fromkeys(reasons)) or None

    def _replace(self, graph: Graph, node: Node, rewrite: Rewrite, dialect: Dialect) -> str | None:
        match = match_at(rewrite.root, node)
        if isinstance(match, str):
            return match
        site = Site.of(match, rewrite)
        obstacle = self.objection(match) or site.obstacle()
        return obstacle or replace_match(graph, site, dialect)
