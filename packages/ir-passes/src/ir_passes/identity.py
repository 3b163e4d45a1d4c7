"""Nodes that give back a value that is there already: views, and casts to the same dtype."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from ir_passes.metadata import difference, fake_of, is_known_equal, storages_in

_CASTS = frozenset({torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default})
# It aliases its input like a view, but torch does not call it one.
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


def viewed(node: Node) -> Node | None:
    """The node of which this one is a view or a part of a list of views; None for anything else."""
    target = node.target
    is_view = isinstance(target, OpOverload) and (target.is_view or target is _UNSAFE_VIEW)
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if target is operator.getitem:
        return source if viewed(source) is not None else None
    return source if is_view else None


def view_chain(node: Node) -> Iterator[Node]:
    """What a node is a view of, what that is a view of, and so on."""
    source = viewed(node)
    while source is not None:
        yield source
        source = viewed(source)


def identity_view_of(node: Node) -> Node | None:
    """The last node in the view chain that is the same tensor; None if there is none.

    It need not be the first view of the chain that changes nothing: two may cancel out.
    """
    mine = fake_of(node)
    if not isinstance(mine, Tensor) or mine.layout is not torch.strided:
        return None
    return next((each for each in view_chain(node) if _is_same_tensor(mine, fake_of(each))), None)


def through_identity_views(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """The first node that is the same tensor, and the views above it, outermost first."""
    source, above = node, list[Node]()
    same = identity_view_of(node)
    while same is not None:
        above.append(source)
        for each in view_chain(source):
            if each is same:
                break
            above.append(each)
        source, same = same, identity_view_of(same)
    return source, tuple(above)


def identity_cast_of(node: Node) -> Node | None:
    """The node that this one copies without changing dtype, device, shape or strides; else None."""
    source = node.args[0] if node.target in _CASTS else None
    if not isinstance(source, Node) or difference(fake_of(node), fake_of(source)) is not None:
        return None
    return source


def _is_same_tensor(first: Tensor, second: object) -> bool:
    if not isinstance(second, Tensor) or storages_in(first) != storages_in(second):
        return False
    is_same_place = is_known_equal(first.storage_offset(), second.storage_offset())
    is_same_value = first.is_conj() == second.is_conj() and first.is_neg() == second.is_neg()
    return is_same_place and is_same_value and difference(first, second) is None
