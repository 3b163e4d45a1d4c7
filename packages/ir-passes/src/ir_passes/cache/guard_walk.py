"""Visits all paths of a tree of guards, and makes their checks on what is there."""

from __future__ import annotations

from typing import Any

from ir_passes.cache.descriptions import Describer
from ir_passes.cache.guard_checks import checker
from ir_passes.cache.guard_paths import Scope, Step, reader, show_path
from ir_passes.cache.guard_tree import GuardTree, Path, spelled
from ir_passes.errors import CannotStoreError

_TENSORS = {"tensor", "argument"}


class PathValues:
    """The objects at single paths of a scope; each step is taken once."""

    def __init__(self, scope: Scope) -> None:
        self._known: dict[str, Any] = {"": scope}

    def at(self, path: Path) -> Any:
        """The object at a path.

        Raises:
            CannotStoreError: nothing is there.
        """
        key = spelled(path)
        if key not in self._known:
            base = self.at(path[:-1])
            try:
                self._known[key] = reader(path[-1])(base)
            except Exception as error:
                raise CannotStoreError(
                    f"`{show_path(path)}` {_missing(path[-1], error)}"
                ) from error
        return self._known[key]


class GuardWalk:
    """One visit, which ends at the first check that fails.

    Attributes:
        failure: what failed, for a person; None if nothing did.
        values: the object at each node, by number.
        tensors: numbers of the nodes of the model's tensors.
        arguments: the same for tensors that are arguments of the call.
    """

    def __init__(self, tree: GuardTree, scope: Scope) -> None:
        self._tree = tree
        self._readers = [reader(step) for step in tree.steps]
        self._checkers = [checker(check) for check in tree.checks]
        self._describer = Describer()
        self.values: list[Any] = []
        self.tensors: list[int] = []
        self.arguments: list[int] = []
        self._of_tensors = {
            index: self.tensors if check[0] == "tensor" else self.arguments
            for index, check in enumerate(tree.checks)
            if check[0] in _TENSORS
        }
        self.failure = self._visit(len(tree.nodes) - 1, scope)

    def show(self, number: int) -> str:
        """The path of a node, as a person would write it, in backquotes."""
        return f"`{show_path(_path_of(self._tree, number))}`"

    def _visit(self, index: int, value: Any) -> str | None:
        number = len(self.values)
        self.values.append(value)
        checks, edges = self._tree.nodes[index]
        for check in checks:
            failure = self._check(check, value)
            if failure is not None:
                return f"{self.show(number)} {failure}"
            if check in self._of_tensors:
                self._of_tensors[check].append(number)
        for step, child in edges:
            try:
                inner = self._readers[step](value)
            except Exception as error:
                return f"{self.show(len(self.values))} {_missing(self._tree.steps[step], error)}"
            failure = self._visit(child, inner)
            if failure is not None:
                return failure
        return None

    def _check(self, check: int, value: Any) -> str | None:
        try:
            return self._checkers[check](value, self._describer)
        except CannotStoreError as error:
            return f"is not what it was: {error}"
        except Exception as error:
            return f"cannot be compared: {type(error).__name__}: {error}"


def _missing(step: Step, error: Exception) -> str:
    if step[0] == "module":
        return "is a module that is not imported"
    if isinstance(error, AttributeError | LookupError):
        return "is missing"
    return f"cannot be read: {type(error).__name__}: {error}"


def _path_of(tree: GuardTree, number: int) -> Path:
    """The steps to the node that a visit comes upon as the `number`th."""
    left = number

    def visit(index: int, path: Path) -> Path | None:
        nonlocal left
        if left == 0:
            return path
        left -= 1
        for step, child in tree.nodes[index][1]:
            found = visit(child, (*path, tree.steps[step]))
            if found is not None:
                return found
        return None

    return visit(len(tree.nodes) - 1, ()) or ()
