"""What a trace assumed about a model's Python objects, as data, and whether it holds again.

The guards are a tree of paths, each with checks, and three relations: which objects are one object,
which of the model's tensors share memory, and torch's settings. Nothing is evaluated but attribute
access, subscripts and comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ir_passes.cache.code_digest import code_digest
from ir_passes.cache.constants import Description
from ir_passes.cache.descriptions import show
from ir_passes.cache.guard_checks import checker
from ir_passes.cache.guard_paths import call_scope, called_function, reader
from ir_passes.cache.guard_tree import GuardTree
from ir_passes.cache.guard_walk import GuardWalk
from ir_passes.cache.tensor_memory import Groups, Memory, same_objects, shared_memory
from ir_passes.cache.torch_state import torch_state
from ir_passes.errors import CannotStoreError, CorruptEntryError


@dataclass(frozen=True, slots=True)
class ModelGuards:
    """The guards of one trace.

    Attributes:
        tree: paths and checks.
        same: numbers of nodes whose objects are one object, in groups.
        repeated: numbers of tensors' nodes, in groups, where one tensor has several nodes.
        shared: numbers of the model's tensors' nodes, in groups, where they share memory, each with
            the tensor's offset.
        state: torch's settings.
        code: digest of the code of the function that was traced.
    """

    tree: GuardTree
    same: Groups
    repeated: Groups
    shared: Memory
    state: Mapping[str, Description]
    code: str

    def failure(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str | None:
        """The first guard that does not hold for a call, for a person; None if all hold."""
        state = torch_state()
        for name, old in self.state.items():
            if state.get(name) != old:
                return f"torch's {name} is {show(state.get(name))}, was {show(old)}"
        try:
            if code_digest(called_function(function).__code__) != self.code:
                return "the function that is called has other code than it had"
            scope, _ = call_scope(function, args, kwargs)
        except (TypeError, ValueError) as error:
            return f"the model is called in another way: {error}"
        walk = GuardWalk(self.tree, scope)
        return walk.failure or self._relation_failure(walk)

    def _relation_failure(self, walk: GuardWalk) -> str | None:
        for group in self.same:
            for first, second in pairwise(group):
                if walk.values[first] is not walk.values[second]:
                    return f"{walk.show(second)} is not {walk.show(first)}, and was the same object"
        repeated, shared = tensor_relations(walk)
        return (
            _changed(walk, self.repeated, repeated, "are one tensor")
            or _changed(walk, _numbers(self.shared), _numbers(shared), "share memory")
            or _moved(walk, self.shared, shared)
        )

    def to_json(self) -> object:
        """Plain JSON types, the same for the same guards."""
        return {
            "steps": list(self.tree.steps),
            "checks": list(self.tree.checks),
            "nodes": [[list(checks), [*map(list, edges)]] for checks, edges in self.tree.nodes],
            "same": [*map(list, self.same)],
            "repeated": [*map(list, self.repeated)],
            "shared": [[list(each) for each in group] for group in self.shared],
            "state": dict(self.state),
            "code": self.code,
        }

    @classmethod
    def from_json(cls, value: Any) -> ModelGuards:
        """The guards that `to_json` wrote.

        Raises:
            CorruptEntryError: it did not write this.
        """
        try:
            tree = GuardTree(
                tuple(value["steps"]),
                tuple(value["checks"]),
                tuple(
                    (tuple(checks), tuple((step, child) for step, child in edges))
                    for checks, edges in value["nodes"]
                ),
            )
            guards = cls(
                tree,
                tuple(map(tuple, value["same"])),
                tuple(map(tuple, value["repeated"])),
                tuple(tuple((at, offset) for at, offset in group) for group in value["shared"]),
                dict(value["state"]),
                value["code"],
            )
            _check_tree(tree)
        except (KeyError, IndexError, TypeError, ValueError, CannotStoreError) as error:
            raise CorruptEntryError(f"Guards on a model are malformed: {error!r}.") from error
        return guards


def tensor_relations(walk: GuardWalk) -> tuple[Groups, Memory]:
    """Which tensors that a walk came upon are one object, and which of the model share memory."""
    tensors = {at: walk.values[at] for at in (*walk.tensors, *walk.arguments)}
    return same_objects(tensors), shared_memory({at: walk.values[at] for at in walk.tensors})


def _changed(walk: GuardWalk, old: Groups, new: Groups, relation: str) -> str | None:
    for group in old:
        if group not in new:
            return f"{_listed(walk, group)} no longer {relation} as they did"
    for group in new:
        if group not in old:
            return f"{_listed(walk, group)} {relation}, and did not"
    return None


def _moved(walk: GuardWalk, old: Memory, new: Memory) -> str | None:
    for before, after in zip(old, new, strict=True):
        for (number, was), (_, offset) in zip(before, after, strict=True):
            if was != offset:
                return f"{walk.show(number)} starts at {offset} in its memory, and did at {was}"
    return None


def _listed(walk: GuardWalk, group: Sequence[int]) -> str:
    shown = [walk.show(each) for each in group[:3]]
    return ", ".join(shown) + (f" and {len(group) - 3} more" if len(group) > 3 else "")


def _numbers(memory: Memory) -> Groups:
    return tuple(tuple(number for number, _ in group) for group in memory)


def _check_tree(tree: GuardTree) -> None:
    """Raises one of several errors for a tree that could not be visited."""
    if not tree.nodes:
        raise ValueError("there is no node")
    for step in tree.steps:
        reader(step)
    for check in tree.checks:
        checker(check)
    for index, (checks, edges) in enumerate(tree.nodes):
        is_known = all(0 <= each < len(tree.checks) for each in checks)
        leads_back = all(0 <= child < index for _, child in edges)
        if (
            not is_known
            or not leads_back
            or any(not 0 <= step < len(tree.steps) for step, _ in edges)
        ):
            raise ValueError(f"node {index} leads nowhere")
