"""Which memory is dead after a part of a program: what a kernel in it may overwrite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.fx import Graph, Node

from ir_passes.dialect import Dialect
from ir_passes.metadata import fake_of, storages_in, storages_of
from ir_passes.writes import donated_storages


class Liveness:
    """Last uses of storages over a program whose parts run one after another.

    The memory of the graph's inputs, constants and results is never dead, except for inputs that
    the model gave away by `maybe_inplace`: that nothing uses them afterwards has been checked.
    """

    def __init__(self, graph: Graph, dialect: Dialect, parts: Sequence[Sequence[Node]]) -> None:
        self._last: dict[int, int] = {}
        for index, nodes in enumerate(parts):
            for node in nodes:
                for storage in storages_of(node) | _taken(node):
                    self._last[storage] = index
        donated = frozenset().union(*(donated_storages(node, dialect) for node in graph.nodes))
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        constants = [node for node in graph.nodes if node.op == "get_attr"]
        kept = storages_in([fake_of(node) for node in inputs]) - donated
        kept |= storages_in([fake_of(node) for node in constants])
        self._kept = kept | _taken(graph.output_node())
        self._consumable = frozenset().union(*(_consumed(node, dialect) for node in graph.nodes))

    def overwritable(self, index: int, inputs: Sequence[Node]) -> Iterator[int]:
        """Positions of the inputs of a part whose memory nothing needs after it.

        Only what an op could take for its result counts, so that parts which differ in nothing
        else stay equal.
        """
        for position, node in enumerate(inputs):
            storages = storages_of(node)
            if not isinstance(fake_of(node), Tensor) or not storages:
                continue
            is_dead = all(self._last[each] <= index for each in storages)
            if is_dead and not storages & self._kept and storages & self._consumable:
                yield position


def _taken(node: Node) -> frozenset[int]:
    return storages_in([fake_of(each) for each in node.all_input_nodes])


def _consumed(node: Node, dialect: Dialect) -> frozenset[int]:
    """Storages that a call takes as activations of an op which may work in place."""
    op = dialect.op_of(node)
    if op is None or not op.allow_inplace:
        return frozenset()
    return _taken(node)
