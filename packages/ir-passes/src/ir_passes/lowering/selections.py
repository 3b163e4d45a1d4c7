"""Which implementation each IR op of a graph became, and why not another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ir_core.selection import Rejection, Selection


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """One lowered node.

    Attributes:
        node: its name in the graph's text.
        line: "file:line" of the model's source.
        op: the IR op.
        provider: whose implementation it became.
        layout: how the weights lie; None for an op without weights.
        rejections: providers that came first in the priority, and why they were passed over.
    """

    node: str
    line: str
    op: str
    provider: str
    layout: str | None
    rejections: tuple[Rejection, ...]

    @classmethod
    def of(cls, node: str, line: str, selection: Selection) -> NodeSelection:
        """The row of a selection."""
        return cls(
            node, line, selection.op.name, selection.provider, selection.layout,
            selection.rejections,
        )  # fmt: skip

    @property
    def used(self) -> str:
        """The provider, and the layout it reads in parentheses."""
        return self.provider if self.layout is None else f"{self.provider} ({self.layout})"


def count_by_provider(rows: Iterable[NodeSelection]) -> dict[str, dict[str, int]]:
    """Number of nodes by op and, within it, by provider: `{"rms_norm": {"vllm_c": 61}}`."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        of_op = counts.setdefault(row.op, {})
        of_op[row.used] = of_op.get(row.used, 0) + 1
    return counts
