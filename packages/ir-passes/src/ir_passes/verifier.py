"""The rules of the dialect, checked on a graph: what a pass may rely on and must leave behind.

A graph is in the dialect if torch's own lint passes and every node
- calls a torch op, an IR op of the registry in its `default` form, or arithmetic on sizes,
- has arguments that fit the schema,
- writes nothing, unless the op splits the graph or declares what it writes, or it is the final
  write-back of an input,
- takes only outputs that exist, and has a fake value that agrees with its arguments'.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from ir_core import ArgumentError
from ir_passes.arguments import bound_arguments
from ir_passes.dialect import Dialect, written_arguments
from ir_passes.errors import VerificationError
from ir_passes.evaluation import evaluate_again
from ir_passes.location import line_of
from ir_passes.metadata import difference, fake_mode_of, fake_of, storages_in, storages_of

_SIZE_ARITHMETIC: frozenset[Callable[..., Any]] = frozenset(
    getattr(module, name)
    for module, names in (
        (operator, "add sub mul floordiv truediv mod pow neg and_ or_ eq ne lt le gt ge"),
        (math, "ceil floor trunc"),
        (torch, "sym_max sym_min sym_not sym_int sym_float sym_ite sym_sum"),
    )
    for name in names.split()
)


def verify(graph: Graph, dialect: Dialect, changed: Collection[Node] | None = None) -> None:
    """Check a whole graph; fake values of `changed` nodes are made again, of all nodes by default.

    Raises:
        VerificationError: every problem, with the node and its line of source.
    """
    problems = _lint(graph) or [*_structure(graph, dialect), *_fakes(graph, changed)]
    if problems:
        listed = "\n".join(f"  {each}" for each in problems)
        raise VerificationError(f"The graph is not in the dialect:\n{listed}")


def is_write_back(node: Node) -> bool:
    """Whether a node copies a final value into an input that is at most returned afterwards."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    if any(user.op != "output" for user in node.users):
        return False
    written = node.args[0]
    if not isinstance(written, Node) or written.op != "placeholder":
        return False
    memory = storages_of(written)
    following = node.next
    while following.op != "output":
        if memory & storages_in([fake_of(each) for each in following.all_input_nodes]):
            return False
        following = following.next
    return True


def _lint(graph: Graph) -> list[str]:
    try:
        graph.lint()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def _structure(graph: Graph, dialect: Dialect) -> Iterator[str]:
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        for problem in _call_problems(node, dialect):
            yield f"`{node.name}` ({line_of(node)}): {problem}"


def _call_problems(node: Node, dialect: Dialect) -> Iterator[str]:
    target = node.target
    if node.op != "call_function":
        yield f"is a {node.op}; only functions can be called"
    elif target is operator.getitem:
        yield from _getitem_problems(node)
    elif isinstance(target, OpOverload):
        yield from _op_problems(node, target, dialect)
    elif isinstance(target, HigherOrderOperator):
        yield from _write_problems(node, dialect)
    elif target not in _SIZE_ARITHMETIC:
        yield f"calls {target!r}, which is neither a torch op nor arithmetic on sizes"


def _getitem_problems(node: Node) -> Iterator[str]:
    source, index = node.args
    outputs = fake_of(source) if isinstance(source, Node) else None
    if not isinstance(outputs, list | tuple):
        yield f"takes output {index} of a value that has no outputs"
    elif not isinstance(index, int) or not -len(outputs) <= index < len(outputs):
        yield f"takes output {index} of {len(outputs)}"


def _op_problems(node: Node, target: OpOverload, dialect: Dialect) -> Iterator[str]:
    if target.namespace == dialect.registry.namespace:
        yield from _ir_op_problems(node, target, dialect)
    try:
        bound_arguments(node)
    except TypeError as error:
        yield str(error)
        return
    yield from _write_problems(node, dialect)
    if target._schema.returns and "val" not in node.meta:
        yield "has no fake value in `meta['val']`"


def _ir_op_problems(node: Node, target: OpOverload, dialect: Dialect) -> Iterator[str]:
    op = dialect.op_of(node)
    if op is None:
        yield f"calls `{target}`, which is not registered"
        return
    if target is not op.torch_op:
        yield f"calls the overload `{target._overloadname}`; a functional graph has `default` only"
        return
    try:
        values = [_value(each) for each in bound_arguments(node).values()]
        op.check_values(*values)
    except ArgumentError as error:
        yield str(error)
    except TypeError:
        return


def _value(argument: Any) -> Any:
    return fake_of(argument) if isinstance(argument, Node) else argument


def _write_problems(node: Node, dialect: Dialect) -> Iterator[str]:
    written = written_arguments(node)
    if written and not dialect.may_write(node) and not is_write_back(node):
        yield f"`{node.target}` writes {', '.join(f'`{each}`' for each in written)}"


def _fakes(graph: Graph, changed: Collection[Node] | None) -> Iterator[str]:
    mode = fake_mode_of(graph)
    done: set[Any] = set()
    for node in graph.nodes if changed is None else changed:
        # Layers repeat: what holds for one call holds for every call like it.
        signature = _signature(node)
        if not _can_evaluate(node) or signature in done:
            continue
        done.add(signature)
        try:
            again = evaluate_again(node, mode)
        except Exception as error:
            yield f"`{node.name}` ({line_of(node)}) fails on fakes: {type(error).__name__}: {error}"
            continue
        problem = difference(fake_of(node), again) or _alias_difference(node, again)
        if problem:
            yield (
                f"`{node.name}` ({line_of(node)}): its recorded fake value has {problem}, as its "
                "arguments make it"
            )


def _can_evaluate(node: Node) -> bool:
    # A call that made a symbol of its own would make another one now.
    is_op = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return node.op == "call_function" and is_op and "unbacked_bindings" not in node.meta


def _signature(node: Node) -> tuple[Any, ...]:
    """Everything that decides whether a node's fake value is right, as something to compare."""
    places: dict[int, int] = {}

    def describe(value: Any) -> Any:
        if isinstance(value, Node):
            return describe(fake_of(value))
        if isinstance(value, list | tuple):
            return tuple(map(describe, value))
        if not isinstance(value, torch.Tensor):
            return type(value).__name__, str(value)
        storage = value.untyped_storage()._cdata if value.layout is torch.strided else 0
        place = places.setdefault(storage, len(places))
        layout = (str(value.stride()), str(value.storage_offset())) if storage else ()
        return str(value.dtype), str(value.device), str(tuple(value.shape)), layout, place

    arguments = [(name, describe(value)) for name, value in node.kwargs.items()]
    return node.target, describe(node.args), tuple(arguments), describe(fake_of(node))


def _alias_difference(node: Node, again: Any) -> str | None:
    inputs = storages_in([fake_of(each) for each in node.all_input_nodes])
    recorded, real = storages_in(fake_of(node)) & inputs, storages_in(again) & inputs
    if recorded == real:
        return None
    return f"memory of {len(recorded)} of its arguments, not of {len(real)}"
