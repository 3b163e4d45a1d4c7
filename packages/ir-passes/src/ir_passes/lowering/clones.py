"""Removes the clones that lowering put before in-place implementations, where that is proven safe.

It reasons about memory, not about names: what counts is whether anything that still has a use lies
in the bytes that would be overwritten. A clone that nothing writes into is not touched: it may be
what keeps two results apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, product

from torch import Tensor
from torch.fx import Graph, Node

from ir_passes.errors import LoweringError
from ir_passes.evaluation import refresh_views
from ir_passes.location import line_of
from ir_passes.lowering.clone_row import CloneRow
from ir_passes.metadata import (
    difference,
    fake_mode_of,
    fake_of,
    storages_in,
    storages_of,
    tensors_in,
)
from ir_passes.region import may_overlap
from ir_passes.writes import written_tensors


def eliminate_clones(
    graph: Graph, clones: Sequence[Node], overwritable: Collection[Node]
) -> tuple[CloneRow, ...]:
    """Remove clones in the graph's order; a row for each says what became of it.

    Args:
        graph: a lowered graph whose fake values say exactly which memory is whose.
        clones: those that may be removed.
        overwritable: placeholders whose memory is dead once this graph has run; the memory of the
            others, and of constants, is never given to a kernel to write.
    """
    kept_memory = _memory_of_caller(graph, overwritable)
    rows: list[CloneRow] = []
    for clone in clones:
        reason = _obstacle(graph, clone, kept_memory)
        rows.append(CloneRow(clone.name, line_of(clone), reason or ""))
        if reason is None:
            _remove(graph, clone)
    return tuple(rows)


def check_outputs_apart(before: Sequence[object], after: Sequence[object]) -> None:
    """Compare which outputs of a graph share bytes, by its fake outputs before and after lowering.

    Raises:
        LoweringError: two that were apart lie in the same memory.
    """
    for first, second in combinations(range(len(before)), 2):
        were_apart = not storages_in(before[first]) & storages_in(before[second])
        if were_apart and _do_overlap(after[first], after[second]):
            raise LoweringError(
                f"Outputs {first} and {second} of the lowered graph share memory, but the ops that "
                "make them return fresh tensors."
            )


def _do_overlap(first: object, second: object) -> bool:
    return any(may_overlap(*pair) for pair in product(tensors_in(first), tensors_in(second)))


def _memory_of_caller(graph: Graph, overwritable: Collection[Node]) -> dict[int, Node]:
    inputs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    return {
        storage: node
        for node in inputs
        if node not in overwritable
        for storage in storages_of(node)
    }


def _obstacle(graph: Graph, clone: Node, kept_memory: dict[int, Node]) -> str | None:
    """Why a clone must stay; None if what it copies may be overwritten instead."""
    source = clone.all_input_nodes[0]
    copy, original = fake_of(clone), fake_of(source)
    unlike = difference(copy, original)
    if unlike is not None:
        return f"`{source.name}` is laid out otherwise: the copy has {unlike}"
    owner = next((kept_memory[each] for each in storages_of(source) if each in kept_memory), None)
    if owner is not None:
        return f"the memory of `{owner.name}` belongs to the caller, who did not give it up"
    twin = _twin(graph, source, original)
    if twin is not None:
        return f"`{twin.name}` is another input in the same memory"
    first_write = next((node for node in _after(clone) if _writes_to(node, copy)), None)
    if first_write is None:
        return "nothing writes into it"
    return _later_use(clone, original, first_write)


def _twin(graph: Graph, source: Node, original: Tensor) -> Node | None:
    """A second input that overlaps the original: compilers take inputs to be apart."""
    inputs = [
        node
        for node in graph.find_nodes(op="placeholder")
        if storages_of(node) & storages_of(source)
    ]
    if len(inputs) < 2:
        return None
    return next((node for node in inputs if node is not source and _overlaps(node, original)), None)


def _later_use(clone: Node, original: Tensor, first_write: Node) -> str | None:
    """What still needs the original's bytes, or changes them while the copy is in use."""
    is_written = False
    for node in _after(clone):
        is_written = is_written or node is first_write
        if _writes_to(node, original):
            return f"`{node.name}` ({line_of(node)}) writes the original while the copy is in use"
        if not is_written:
            continue
        for each in node.all_input_nodes:
            if _overlaps(each, original):
                what = "returns" if node.op == "output" else f"at {line_of(node)} uses"
                return f"`{node.name}` {what} `{each.name}`, which lies in the same memory"
    return None


def _overlaps(node: Node, tensor: Tensor) -> bool:
    return any(may_overlap(each, tensor) for each in tensors_in(fake_of(node)))


def _writes_to(node: Node, tensor: Tensor) -> bool:
    return any(may_overlap(each, tensor) for each in written_tensors(node))


def _after(node: Node) -> Iterator[Node]:
    while node.op != "output":
        node = node.next
        yield node


def _remove(graph: Graph, clone: Node) -> None:
    source = clone.all_input_nodes[0]
    stale = storages_of(clone) - storages_of(source)
    clone.replace_all_uses_with(source)
    graph.erase_node(clone)
    refresh_views(source, stale, fake_mode_of(graph))
