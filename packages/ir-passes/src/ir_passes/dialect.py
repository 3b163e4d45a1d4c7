"""The dialect on FX: which calls are IR ops, which split the graph, which may write. No checks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from ir_core import IrOp, Registry, registry

# These are functional: they return the new values of what the op inside them writes.
_FUNCTIONAL_WRAPPERS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
_WRITING_WRAPPERS = frozenset({"triton_kernel_wrapper_mutation"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """ATen ops, plus the ops of one registry.

    Attributes:
        registry: whose ops are IR ops.
        splitting_ops: names of the ops at which the graph is split, `paged_attention` or
            `namespace::name`; None means those that are declared so.
    """

    registry: Registry = field(default_factory=registry)
    splitting_ops: Collection[str] | None = None

    def op_of(self, node: Node) -> IrOp | None:
        """The IR op that a node calls, by whichever overload; None for any other node."""
        return self.op_behind(node.target)

    def op_behind(self, target: Any) -> IrOp | None:
        """The IR op of a call's target, by whichever overload; None for any other target."""
        if not isinstance(target, OpOverload) or target.namespace != self.registry.namespace:
            return None
        return self.registry.get(target._opname)

    def is_splitting(self, node: Node) -> bool:
        """Whether the graph is split at this node."""
        return self.splits_at(node.target)

    def may_write(self, node: Node) -> bool:
        """Whether a functional graph may hold this node although it writes an argument.

        That is so for an op that declares `mutates` and for one that splits the graph.
        """
        return self.admits_writes_of(node.target)

    def admits_writes_of(self, target: Any) -> bool:
        """Whether a functional graph may hold a call of this target although it writes."""
        op = self.op_behind(target)
        return self.splits_at(target) or (op is not None and bool(op.mutates))

    def splits_at(self, target: Any) -> bool:
        """Whether the graph is split at a call of this target."""
        if self.splitting_ops is None:
            op = self.op_behind(target)
            return op is not None and op.splits
        if not isinstance(target, OpOverload):
            return False
        qualified = target._schema.name
        names = {qualified, qualified.replace("::", ".")}
        if target.namespace == self.registry.namespace:
            names.add(target._opname)
        return not names.isdisjoint(self.splitting_ops)


def written_arguments(node: Node) -> tuple[str, ...]:
    """Names of the parameters that a call writes, by its schema; () for one that writes nothing."""
    target = node.target
    if isinstance(target, HigherOrderOperator) and target.name() in _WRITING_WRAPPERS:
        return ("kwargs",)
    if not isinstance(target, OpOverload) or not target._schema.is_mutable:
        return ()
    return tuple(
        each.name
        for each in target._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    )


def is_functional_wrapper(node: Node) -> bool:
    """Whether a node is torch's functional form of an op that writes."""
    target = node.target
    return isinstance(target, HigherOrderOperator) and target.name() in _FUNCTIONAL_WRAPPERS
