"""Which memory a graph writes, gives away and returns: what makes sharing it unsafe."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ir_passes.arguments import bound_arguments
from ir_passes.dialect import Dialect, written_arguments
from ir_passes.donation import donated_arguments
from ir_passes.metadata import fake_of, storages_in, tensors_in


def written_storages(node: Node) -> frozenset[int]:
    """Storages that a call writes, by its schema."""
    return _storages_of_arguments(node, written_arguments(node))


def written_tensors(node: Node) -> tuple[Tensor, ...]:
    """Fake tensors that a call writes, by its schema; all that it takes if it has none."""
    names = written_arguments(node)
    if not names:
        return ()
    if not isinstance(node.target, OpOverload):
        return tuple(tensors_in([fake_of(each) for each in node.all_input_nodes]))
    given = bound_arguments(node)
    found = (tensors_in(map_arg(given[name], fake_of)) for name in names)
    return tuple(each for tensors in found for each in tensors)


def donated_storages(node: Node, dialect: Dialect) -> frozenset[int]:
    """Storages that a call's caller gave away."""
    return _storages_of_arguments(node, donated_arguments(node, dialect))


@dataclass(frozen=True, slots=True)
class StorageUses:
    """Storages of a whole graph, by what happens to them."""

    written: frozenset[int]
    donated: frozenset[int]
    inputs: frozenset[int]
    outputs: frozenset[int]

    @classmethod
    def of(cls, graph: Graph, dialect: Dialect) -> StorageUses:
        """Collect the uses of a graph's storages."""
        nodes = list(graph.nodes)
        inputs = [fake_of(each) for each in nodes if each.op in ("placeholder", "get_attr")]
        outputs = [fake_of(each) for each in graph.output_node().all_input_nodes]
        return cls(
            frozenset().union(*map(written_storages, nodes)),
            frozenset().union(*(donated_storages(each, dialect) for each in nodes)),
            storages_in(inputs),
            storages_in(outputs),
        )


def _storages_of_arguments(node: Node, names: tuple[str, ...]) -> frozenset[int]:
    if not names:
        return frozenset()
    given = bound_arguments(node)
    return storages_in([fake_of(given[name]) for name in names if isinstance(given[name], Node)])
