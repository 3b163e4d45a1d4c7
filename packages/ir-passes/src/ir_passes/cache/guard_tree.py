"""The paths of many guards as one tree, in which equal parts are held once.

The layers of a model differ in little, so the tree of a deep one is hardly larger than that of a
flat one. Nodes are numbered in the order in which a walk comes upon them, equal parts each time
anew; relations between objects are told by these numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir_passes.cache.guard_checks import Check
from ir_passes.cache.guard_paths import Step

Path = tuple[Step, ...]
Node = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""The checks of an object, and the steps on from it, each with the node that it leads to."""


@dataclass(frozen=True, slots=True)
class GuardTree:
    """A tree of checks. A node leads to earlier nodes only; the last one is the root."""

    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    nodes: tuple[Node, ...]


@dataclass(slots=True)
class _Branch:
    checks: set[str] = field(default_factory=set[str])
    children: dict[str, _Branch] = field(default_factory=dict[str, "_Branch"])


class TreeBuilder:
    """Collects checks of paths; what it builds does not depend on their order."""

    def __init__(self) -> None:
        self._root = _Branch()

    def add(self, path: Path, checks: Iterable[Check] = ()) -> None:
        """Add a path, and what is checked there."""
        branch = self._root
        for step in path:
            branch = branch.children.setdefault(_spelled(step), _Branch())
        branch.checks.update(map(_spelled, checks))

    def build(self) -> GuardTree:
        """The tree of all that was added."""
        steps, checks, nodes = _Table(), _Table(), dict[Node, int]()

        def freeze(branch: _Branch) -> int:
            node: Node = (
                tuple(checks.index(each) for each in sorted(branch.checks, key=_check_order)),
                tuple((steps.index(step), freeze(child)) for step, child in _ordered(branch)),
            )
            return nodes.setdefault(node, len(nodes))

        freeze(self._root)
        return GuardTree(steps.values(), checks.values(), tuple(nodes))

    def numbers(self) -> dict[str, int]:
        """The number of each path's node, by `spelled`."""
        found: dict[str, int] = {}

        def visit(branch: _Branch, path: str) -> None:
            found[path] = len(found)
            for step, child in _ordered(branch):
                visit(child, path + step)

        visit(self._root, "")
        return found


def spelled(path: Sequence[Step]) -> str:
    """A path as text, to look it up by."""
    return "".join(map(_spelled, path))


class _Table:
    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def index(self, value: str) -> int:
        return self._known.setdefault(value, len(self._known))

    def values(self) -> tuple[Any, ...]:
        return tuple(map(json.loads, self._known))


def _spelled(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _ordered(branch: _Branch) -> list[tuple[str, _Branch]]:
    return sorted(branch.children.items())


def _check_order(check: str) -> tuple[bool, str]:
    # A value of another type explains more than the checks that it cannot pass.
    return not check.startswith('["type"'), check
