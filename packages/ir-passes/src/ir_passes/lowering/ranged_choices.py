"""The choices in a piece that depend on the number of rows. Lowers nothing.

Pieces of one structure are compiled once for several ranges of token counts only if these agree.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ir_core import IrError, IrOp
from ir_passes.arguments import bound_arguments
from ir_passes.dialect import Dialect
from ir_passes.errors import LoweringError
from ir_passes.evaluation import fake_arguments
from ir_passes.location import line_of
from ir_passes.printer import GraphPrinter


def ranged_providers(graph: Graph, dialect: Dialect) -> tuple[str, ...]:
    """The provider of each call for whose op timing has chosen by rows, in order.

    Raises:
        LoweringError: the rows of a call may lie in several ranges; names op, line and ranges.
    """
    priorities = dialect.registry.priorities
    if not priorities.row_ends():
        return ()
    found = ((node, dialect.op_of(node)) for node in graph.nodes)
    return tuple(
        _provider(node, op, dialect)
        for node, op in found
        if op is not None and priorities.row_ends(op)
    )


def _provider(node: Node, op: IrOp, dialect: Dialect) -> str:
    values, _ = fake_arguments(tuple(bound_arguments(node).values()), {})
    try:
        return op.select(*values).provider
    except IrError as error:
        name = GraphPrinter(node.graph, dialect).name_of(node)
        raise LoweringError(f"`{name}` ({line_of(node)}): {error}") from error
