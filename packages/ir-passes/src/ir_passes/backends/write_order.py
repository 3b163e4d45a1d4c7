"""Keeps reads before writes where Inductor computes lazily. Owns no compiler.

A loop that reads a tensor is put off until its value is needed; a kernel that writes the tensor in
between would be called first.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch._ops import OpOverload
from torch.fx import Graph
from torch.utils._pytree import tree_leaves

from ir_passes.arguments import bind
from ir_passes.dialect import written_arguments

# Torch's own in-place ops are no calls in generated code, and are ordered already.
_OWN = ("aten", "prims")


@contextmanager
def reads_before_writes(graph: Graph) -> Generator[None]:
    """Within it, Inductor computes what reads a tensor of this graph before a kernel writes it."""
    # It costs two seconds, and only what is compiled needs it.
    from torch._inductor.lowering import user_lowerings  # noqa: PLC0415

    written = {node.target: written_arguments(node) for node in graph.nodes}
    added = {
        target: partial(_compute_readers, target, names)
        for target, names in written.items()
        if isinstance(target, OpOverload) and names and target.namespace not in _OWN
        if target not in user_lowerings
    }
    user_lowerings.update(added)
    try:
        yield
    finally:
        for target in added:
            del user_lowerings[target]


def _compute_readers(target: OpOverload, names: tuple[str, ...], *args: Any, **kwargs: Any) -> None:
    """A lowering that has no result of its own: Inductor's usual one follows."""
    from torch._inductor.ir import TensorBox  # noqa: PLC0415
    from torch._inductor.virtualized import V  # noqa: PLC0415

    given = bind(target, args, kwargs)
    for value in tree_leaves([given[name] for name in names]):
        if isinstance(value, TensorBox):
            value.realize()
            V.graph.mark_buffer_mutated(value.get_name())
