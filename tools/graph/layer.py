"""The nodes of one layer in a graph of the whole model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from torch.fx import Graph, Node

from ir_passes.dialect import Dialect
from ir_passes.printer import INPUT_PATH, GraphPrinter

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def nodes_of_layer(graph: Graph, layer: int) -> list[Node]:
    """From the first node that uses a tensor of the layer up to the first that uses a later one.

    What a pass fused across the border belongs to the later layer. A tensor that layers share,
    under the name that it has in the first of them, moves nothing.
    """
    found: list[Node] = []
    reached: float = -1
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        reached = max(reached, *(_layer_of(each, reached) for each in node.all_input_nodes), -1)
        if reached == layer:
            found.append(node)
    return found


def layer_lines(graph: Graph, nodes: Sequence[Node], dialect: Dialect) -> list[str]:
    """The lines of these nodes, as they stand in the text of the whole graph."""
    printer = GraphPrinter(graph, dialect)
    return [f"  {printer.line(node)}" for node in nodes]


def _layer_of(node: Node, reached: float) -> float:
    path = str(node.meta.get(INPUT_PATH, ""))
    layer = _LAYER.search(path)
    if layer is not None:
        return int(layer[1])
    is_behind = path.startswith("self.") and reached >= 0
    return math.inf if is_behind else -1
