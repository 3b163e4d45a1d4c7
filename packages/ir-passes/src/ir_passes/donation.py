"""Donation marks: which arguments of a call its caller gave away. They live with the node.

The key is under `meta["custom"]`, which every trace of torch carries on; torch also copies it to
other nodes made by the same call, so a mark counts on the IR op's own node only.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from ir_passes.dialect import Dialect

DONATED = "ir.donated"


def donated_arguments(node: Node, dialect: Dialect) -> tuple[str, ...]:
    """Names of the parameters whose tensors the call may overwrite; () for most nodes."""
    if dialect.op_of(node) is None:
        return ()
    return tuple(node.meta.get("custom", {}).get(DONATED, ()))


def mark_donated(node: Node, names: Iterable[str]) -> None:
    """Replace the mark of a node; no names means none."""
    custom = {key: value for key, value in node.meta.get("custom", {}).items() if key != DONATED}
    names = tuple(names)
    if names:
        custom[DONATED] = names
    node.meta["custom"] = custom
