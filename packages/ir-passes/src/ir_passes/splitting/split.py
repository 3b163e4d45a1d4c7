"""Cuts a functional graph at its splitting ops. It changes no value and compiles nothing."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import SymInt
from torch.fx import Graph, GraphModule, Node

from ir_passes.dialect import Dialect
from ir_passes.errors import SplitError
from ir_passes.location import INPUT_PATH
from ir_passes.metadata import fake_of, symbols_in, tensors_in
from ir_passes.splitting.liveness import Liveness


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a whole graph without splitting ops.

    Attributes:
        name: `piece_0`, counted in the order of the program.
        module: the part as a graph of its own; placeholders in the order of `inputs`.
        inputs: nodes of the whole graph whose values it takes; numbers among them are those of
            every symbol that its shapes have.
        outputs: nodes of the whole graph that it computes and that something after it takes.
        overwritable: positions among `inputs` of tensors whose memory is dead after it.
    """

    name: str
    module: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    overwritable: frozenset[int]

    def overwritable_placeholders(self, module: GraphModule) -> list[Node]:
        """The placeholders of this piece's module, or a copy of it, that may be overwritten."""
        placeholders = module.graph.find_nodes(op="placeholder")
        return [placeholders[position] for position in sorted(self.overwritable)]


Step = Piece | Node


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """A whole graph as a program: pieces, and between them calls of splitting ops.

    A step that is a node calls a splitting op or takes one of its outputs. `inputs` are the
    placeholders; `constants` the nodes that read the module's own tensors; `sizes` those that
    measure an input for a piece, where no input is the number itself: they come before all steps.
    """

    module: GraphModule
    inputs: tuple[Node, ...]
    constants: tuple[Node, ...]
    sizes: tuple[Node, ...]
    steps: tuple[Step, ...]
    output: Node

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces in order."""
        return tuple(step for step in self.steps if isinstance(step, Piece))


def split_graph(module: GraphModule, dialect: Dialect) -> SplitGraph:
    """Cut at every splitting op; tensors, numbers, None and outputs of tuples may cross.

    Raises:
        SplitError: a tuple itself crosses, or a size that no input gives.
    """
    graph = module.graph
    _order_getitems(graph)
    groups = _groups(graph, dialect)
    sizes = _SizeSources(graph)
    liveness = Liveness(graph, dialect, [_nodes_of(group) for group in groups])
    steps: list[Step] = []
    for index, group in enumerate(groups):
        if isinstance(group, Node):
            steps.append(group)
            continue
        name = f"piece_{sum(isinstance(step, Piece) for step in steps)}"
        steps.append(_cut(module, name, group, sizes, liveness, index))
    return SplitGraph(
        module,
        tuple(graph.find_nodes(op="placeholder")),
        tuple(graph.find_nodes(op="get_attr")),
        tuple(sizes.measured),
        tuple(steps),
        graph.output_node(),
    )


def _order_getitems(graph: Graph) -> None:
    """Take the outputs of a call directly after it, so that no tuple crosses a cut."""
    for node in list(graph.nodes):
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            source = node.args[0]
            if source.op not in ("placeholder", "get_attr"):
                source.append(node)


def _groups(graph: Graph, dialect: Dialect) -> list[Node | list[Node]]:
    groups: list[Node | list[Node]] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if dialect.is_splitting(node) or _is_output_of_splitting(node, dialect):
            groups.append(node)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _is_output_of_splitting(node: Node, dialect: Dialect) -> bool:
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and dialect.is_splitting(source)


def _nodes_of(group: Node | list[Node]) -> list[Node]:
    return group if isinstance(group, list) else [group]


class _SizeSources:
    """For each symbol of a graph's shapes, the node whose value it is.

    `measured` are the nodes among those asked for that were put in to measure an input.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[sympy.Symbol, Node] = {}
        self._measuring: set[Node] = set()
        self.measured: dict[Node, None] = {}
        placeholders = graph.find_nodes(op="placeholder")
        self._take(placeholders)
        body = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
        for node in placeholders:
            for tensor in tensors_in(fake_of(node)):
                for dim, size in enumerate(tensor.shape):
                    self._measure(node, dim, size, body)
        # Only what no input tells: another node's number may come after the piece that needs it.
        self._take(graph.nodes)

    def of(self, symbol: sympy.Symbol) -> Node:
        """The node whose value is the symbol's."""
        if symbol not in self._nodes:
            raise SplitError(f"No input of the graph says what the size `{symbol}` is.")
        node = self._nodes[symbol]
        if node in self._measuring:
            self.measured[node] = None
        return node

    def _take(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            value = fake_of(node)
            if isinstance(value, SymInt) and isinstance(value.node.expr, sympy.Symbol):
                self._nodes.setdefault(value.node.expr, node)

    def _measure(self, node: Node, dim: int, size: int | SymInt, body: Node) -> None:
        if not isinstance(size, SymInt) or not isinstance(size.node.expr, sympy.Symbol):
            return
        if size.node.expr in self._nodes:
            return
        with self._graph.inserting_before(body):
            measured = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
        measured.meta["val"] = size
        self._measuring.add(measured)
        self._nodes[size.node.expr] = measured


def _cut(
    module: GraphModule,
    name: str,
    nodes: Sequence[Node],
    sizes: _SizeSources,
    liveness: Liveness,
    index: int,
) -> Piece:
    inside = set(nodes)
    taken = dict.fromkeys(
        each for node in nodes for each in node.all_input_nodes if each not in inside
    )
    constants = [each for each in taken if each.op == "get_attr"]
    inputs = [each for each in taken if each.op != "get_attr"]
    inputs += _missing_sizes(nodes, inputs, inside, sizes)
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    _check_crossing(name, (*inputs, *outputs))
    piece = Graph()
    copies: dict[Node, Node] = {}
    for each in inputs:
        copies[each] = _placeholder(piece, each)
    for each in (*constants, *nodes):
        copies[each] = piece.node_copy(each, copies.__getitem__)
    piece.output(tuple(copies[each] for each in outputs))
    piece.lint()
    overwritable = liveness.overwritable(index, inputs)
    return Piece(
        name, GraphModule(module, piece), tuple(inputs), tuple(outputs), frozenset(overwritable)
    )


def _missing_sizes(
    nodes: Sequence[Node], inputs: Sequence[Node], inside: set[Node], sizes: _SizeSources
) -> Iterator[Node]:
    """Nodes of the symbols that occur in a piece's shapes and that none of its nodes carries."""
    values = [fake_of(node) for node in (*inputs, *nodes)]
    known = {
        value.node.expr
        for node, value in zip((*inputs, *nodes), values, strict=True)
        if isinstance(value, SymInt) and node not in inside
    }
    for symbol in sorted(symbols_in(values), key=str):
        if symbol not in known:
            source = sizes.of(symbol)
            if source not in inside:
                yield source


def _placeholder(piece: Graph, node: Node) -> Node:
    copy = piece.placeholder(node.name)
    copy.meta["val"] = fake_of(node)
    if INPUT_PATH in node.meta:
        copy.meta[INPUT_PATH] = node.meta[INPUT_PATH]
    return copy


def _check_crossing(name: str, nodes: Iterable[Node]) -> None:
    for node in nodes:
        if isinstance(fake_of(node), list | tuple | Mapping):
            raise SplitError(
                f"`{node.name}` is a {type(fake_of(node)).__name__} and crosses the border of "
                f"`{name}`; only its elements can."
            )
