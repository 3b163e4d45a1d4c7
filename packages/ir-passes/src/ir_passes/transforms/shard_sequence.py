"""Sequence parallelism: norms, residuals and quantisation run on each rank's rows, not on all."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

import ir_core as ir
from ir_passes.arguments import bound_arguments
from ir_passes.base import MatchRow, Pass, PassContext, PassResult
from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.location import line_of
from ir_passes.metadata import fake_of
from ir_passes.node_factory import NodeFactory
from ir_passes.printer import GraphPrinter
from ir_passes.transforms.quantized_result import QUANTIZE

# Ops that compute each row by itself, and the parameters that have rows.
_ROWWISE = {
    ir.ops.rms_norm: ("x",),
    ir.ops.fused_add_rms_norm: ("x", "x_residual"),
    **dict.fromkeys(QUANTIZE, ("x",)),
}


@dataclass(frozen=True)
class ShardSequence(Pass):
    """Turns `all_reduce`, then norms, into `reduce_scatter`, the same on a shard, `all_gather`.

    What is computed row by row from sums alone stays sharded from layer to layer, across attention
    too, and is gathered where anything else needs it. A sum that something else reads is left
    alone, with all that would have mixed its rows with a shard's. Any token count will do: the
    collectives pad to a multiple of the ranks, and cut the padding off again.

    What is quantised is quantised on the shard, bit for bit, and gathered as bytes, with its scales
    if each row has one; not so where something else needs all rows of what it is made from.

    Attributes:
        axis: the logical axis of the ranks.
        min_tokens: fewest tokens for which it pays.
    """

    name = "shard_sequence"
    option = "enable_sp"
    keeps_rows = False

    axis: str = "tp"
    min_tokens: int = 1

    def refusal(self, context: PassContext) -> str | None:
        """One rank has nothing to share, and few tokens are not worth it."""
        if context.axes.get(self.axis, 1) == 1:
            return f"axis `{self.axis}` has one rank"
        last = context.sizes.last
        if last is not None and last < self.min_tokens:
            return f"fewer than {self.min_tokens} tokens"
        return None

    def endpoints(self) -> tuple[int, ...]:
        """The last size that is not worth it."""
        return (self.min_tokens - 1,) if self.min_tokens > 1 else ()

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Find the largest part of the graph that can run on shards, and rewrite it."""
        printer = GraphPrinter(graph, context.dialect)
        sums = [node for node in graph.nodes if self._is_sum(node, context.dialect)]
        region = _Region.of(graph, sums, context.dialect)
        rows = [
            MatchRow(printer.name_of(node), line_of(node), region.reasons.get(node, ""))
            for node in sums
        ]
        _Rewrite(graph, region, self.axis, context.dialect).run()
        return PassResult(len(region.sums), matches=tuple(rows))

    def _is_sum(self, node: Node, dialect: Dialect) -> bool:
        op = dialect.op_of(node)
        return op is ir.ops.all_reduce and bound_arguments(node)["group"] == self.axis


@dataclass(frozen=True, slots=True)
class _Region:
    """What runs on shards.

    Attributes:
        sums: the reductions that scatter their result.
        nodes: what is computed from them alone, row by row, in the graph's order.
        reasons: why the other reductions do not.
    """

    sums: frozenset[Node]
    nodes: tuple[Node, ...]
    reasons: dict[Node, str] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, sums: Sequence[Node], dialect: Dialect) -> _Region:
        """The largest region in which every reader of a sum is part of the region."""
        kept = set(sums)
        gathered: set[Node] = set()
        reasons: dict[Node, str] = {}
        while True:
            nodes = _computed_from(graph, kept, gathered, dialect)
            inside = {*kept, *nodes}
            outside = {each: reason for each in kept if (reason := _obstacle(each, inside))}
            again = set(_quantizing_gathered(nodes, inside, dialect))
            if not outside and not again:
                return cls(frozenset(kept), tuple(nodes), reasons)
            reasons |= outside
            kept -= outside.keys()
            gathered |= again

    def __contains__(self, node: object) -> bool:
        return node in self.sums or node in self.nodes


def _computed_from(
    graph: Graph, sums: Iterable[Node], gathered: Container[Node], dialect: Dialect
) -> list[Node]:
    """What is computed row by row from the sums alone, but for the `gathered` and what needs it."""
    sharded = set(sums)
    found: list[Node] = []
    for node in graph.nodes:
        if node in gathered:
            continue
        operands = _operands(node, dialect)
        # A value of fewer dims is the same for all rows, unless it has the rows of a shard itself.
        read = [*operands, *(each for each in node.all_input_nodes if each in sharded)]
        if node not in sharded and operands and set(read) == set(operands) <= sharded:
            sharded.add(node)
            found.append(node)
    return found


def _quantizing_gathered(
    nodes: Iterable[Node], inside: Container[Node], dialect: Dialect
) -> Iterator[Node]:
    """The nodes that quantise what is gathered anyway: bytes would be gathered besides."""
    for node in nodes:
        if dialect.op_of(node) not in QUANTIZE:
            continue
        (source,) = _operands(node, dialect)
        if any(user not in inside for user in source.users):
            yield node


def _operands(node: Node, dialect: Dialect) -> Sequence[Node]:
    """The nodes whose rows a node computes its own from; none if it is not computed by rows."""
    if node.target is operator.getitem:
        source = node.args[0]
        is_call = isinstance(source, Node) and dialect.op_of(source) is not None
        return (source,) if isinstance(source, Node) and is_call else ()
    names = _ROWWISE.get(dialect.op_of(node))  # type: ignore[arg-type]
    if names is not None:
        given = bound_arguments(node)
        return tuple(given[name] for name in names)
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return ()
    if any(_is_quantized(each) for each in node.all_input_nodes):
        return ()  # what is made of bytes is wider, and would be gathered in their place
    return tuple(each for each in node.all_input_nodes if _has_rows(each, node))


def _is_quantized(node: Node) -> bool:
    value = fake_of(node)
    return isinstance(value, Tensor) and value.dtype in (torch.int8, torch.float8_e4m3fn)


def _has_rows(operand: Node, result: Node) -> bool:
    """Whether an operand of a pointwise op is not the same for every row of the result."""
    value, output = fake_of(operand), fake_of(result)
    is_tensor = isinstance(value, Tensor) and isinstance(output, Tensor)
    return not is_tensor or value.dim() >= output.dim()


def _obstacle(node: Node, inside: set[Node]) -> str | None:
    if not node.users:
        return "nothing reads the sum"
    stranger = next((user for user in node.users if user not in inside), None)
    if stranger is None:
        return None
    what = "the model returns it" if stranger.op == "output" else f"`{stranger.target}` reads it"
    return f"{what} with all its rows"


class _Rewrite:
    """Replaces a region by one on shards."""

    def __init__(self, graph: Graph, region: _Region, axis: str, dialect: Dialect) -> None:
        self._graph = graph
        self._region = region
        self._axis = axis
        self._dialect = dialect
        self._shards: dict[Node, Node] = {}
        # What each value of the region has as many rows as.
        self._full: dict[Node, Node] = {}

    def run(self) -> None:
        old = [node for node in self._graph.nodes if node in self._region]
        for node in old:
            with self._graph.inserting_before(node):
                self._shards[node] = self._shard(node, NodeFactory(self._graph, node))
        for node in old:
            self._gather(node)
        for node in reversed(old):
            self._graph.erase_node(node)

    def _shard(self, node: Node, make: NodeFactory) -> Node:
        if node in self._region.sums:
            source = self._full[node] = bound_arguments(node)["x"]
            arguments = {"x": source, "group": self._axis}
            return make.call(ir.ops.reduce_scatter.torch_op, arguments)
        self._full[node] = self._full[_operands(node, self._dialect)[0]]
        if node.target is operator.getitem:
            source, index = node.args
            return make.output(self._shards[source], index)  # type: ignore[index, arg-type]
        given = {
            name: self._shards.get(value, value) if isinstance(value, Node) else value
            for name, value in bound_arguments(node).items()
        }
        donated = donated_arguments(node, self._dialect)
        return make.call(node.target, given, donated)  # type: ignore[arg-type]

    def _gather(self, node: Node) -> None:
        """Give what is outside the region all rows of a value."""
        outside = [user for user in node.users if user not in self._region]
        if not outside or not isinstance(fake_of(node), Tensor):
            return
        shard = self._shards[node]
        make = NodeFactory(self._graph, node)
        first = next(each for each in self._graph.nodes if each in outside)
        with self._graph.inserting_before(first):
            size = make.call(torch.ops.aten.sym_size.int, {"self": self._full[node], "dim": 0})
            arguments = {"x": shard, "num_tokens": size, "group": self._axis}
            gathered = make.call(ir.ops.all_gather.torch_op, arguments)
        node.replace_all_uses_with(gathered, lambda user: user in outside)
