"""Finds where a pattern fits a graph, by structure alone. Changes nothing and judges nothing."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ir_passes.arguments import bound_arguments
from ir_passes.identity import through_identity_views
from ir_passes.matching.pattern import Call, Free, Output


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern fits.

    Attributes:
        root: the node of the pattern's root.
        values: what each free variable stands for: a node, or a constant of the graph.
        nodes: the node of each call of the pattern.
        views: identity views that lie between them.
    """

    root: Node
    values: Mapping[str, Any]
    nodes: Mapping[Call, Node]
    views: tuple[Node, ...]

    def operands(self) -> tuple[Node, ...]:
        """The nodes that free variables stand for, each once."""
        nodes = (each for each in self.values.values() if isinstance(each, Node))
        return tuple(dict.fromkeys(nodes))

    def fake(self, name: str) -> Any:
        """Fake value of a free variable's node, or the constant itself."""
        value = self.values[name]
        return value.meta.get("val") if isinstance(value, Node) else value


def match_at(pattern: Call, node: Node) -> Match | str:
    """The match of a pattern whose root is this node, or the first thing that does not fit."""
    attempt = _Attempt({}, {}, {})
    reason = attempt.call(pattern, node)
    if reason is not None:
        return reason
    return Match(node, attempt.values, attempt.nodes, tuple(attempt.views))


@dataclass(slots=True)
class _Attempt:
    values: dict[str, Any]
    nodes: dict[Call, Node]
    views: dict[Node, None]

    def call(self, pattern: Call, node: Node) -> str | None:
        known = self.nodes.get(pattern)
        if known is not None:
            return None if known is node else f"`{known.name}` and `{node.name}` are not one call"
        if node.target is not pattern.target:
            return f"is made by `{_describe(node)}`, not by `{pattern}`"
        self.nodes[pattern] = node
        given = bound_arguments(node)
        names = list(pattern.arguments)
        if not pattern.commutes:
            return self._arguments(pattern, given, names)
        swapped = [names[1], names[0], *names[2:]]
        trial = _Attempt(dict(self.values), dict(self.nodes), dict(self.views))
        reason = trial._arguments(pattern, given, names)
        if reason is None:
            self.values, self.nodes, self.views = trial.values, trial.nodes, trial.views
            return None
        return reason if self._arguments(pattern, given, swapped) is not None else None

    def _arguments(self, pattern: Call, given: Mapping[str, Any], names: list[str]) -> str | None:
        for expression, name in zip(pattern.arguments.values(), names, strict=True):
            reason = self._argument(expression, given[name])
            if reason is not None:
                return reason if reason.startswith("`") else f"`{name}` {reason}"
        return None

    def _argument(self, expression: Any, value: Any) -> str | None:
        if isinstance(expression, Free):
            return self._free(expression.name, value)
        if not isinstance(expression, Call | Output):
            return _literal(expression, value)
        if not isinstance(value, Node):
            return f"is {value!r}, not the result of `{expression}`"
        node, views = through_identity_views(value)
        self.views.update(dict.fromkeys(views))
        if isinstance(expression, Call):
            return self.call(expression, node)
        return self._output(expression, node)

    def _output(self, expression: Output, node: Node) -> str | None:
        source, *index = node.args if node.target is operator.getitem else (None,)
        if not isinstance(source, Node):
            return f"is made by `{_describe(node)}`, not by `{expression}`"
        if source.target is expression.call.target and index != [expression.index]:
            return f"is output {index[0]}, not `{expression}`"
        return self.call(expression.call, source)

    def _free(self, name: str, value: Any) -> str | None:
        if name not in self.values:
            self.values[name] = value
            return None
        known = self.values[name]
        return None if _is_same(known, value) else f"is another value than `{name}` elsewhere"


def _literal(expected: Any, value: Any) -> str | None:
    is_same = type(value) is type(expected) and value == expected
    return None if is_same else f"is {value!r}, not {expected!r}"


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Node) and isinstance(second, Node):
        return through_identity_views(first)[0] is through_identity_views(second)[0]
    return type(first) is type(second) and not isinstance(first, Node) and first == second


def _describe(node: Node) -> str:
    if node.op == "placeholder":
        return "an input"
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.replace("::", ".")
    return str(getattr(node.target, "__name__", node.target))
