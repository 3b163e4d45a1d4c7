"""Fake values of calls: what a node's op makes of the fake values of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ir_passes.metadata import fake_of, storages_of

NodeArguments = tuple[tuple[Any, ...], dict[str, Any]]


def fake_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NodeArguments:
    """Arguments of a call with each node replaced by its fake value."""
    return map_arg((args, dict(kwargs)), fake_of)  # type: ignore[arg-type, return-value]


def evaluate(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mode: FakeTensorMode | None,
) -> Any:
    """Fake value of a call on nodes, without a gradient. It may add guards to the mode's shapes."""
    values, options = fake_arguments(args, kwargs)
    if mode is None:
        return target(*values, **options)
    with torch.no_grad(), mode, enable_python_dispatcher():
        return target(*values, **options)


def evaluate_again(node: Node, mode: FakeTensorMode | None) -> Any:
    """Fake value of a node from its arguments, without a trace in the shapes' guards."""
    with _no_guards(mode):
        return evaluate(node.target, node.args, node.kwargs, mode)  # type: ignore[arg-type]


def refresh_fakes(graph: Graph, mode: FakeTensorMode | None) -> None:
    """Make all fake values of a graph anew from its inputs: which memory is whose is then exact.

    A node that made a symbol of its own keeps its value.
    """
    for node in graph.nodes:
        if node.op == "call_function" and "unbacked_bindings" not in node.meta:
            node.meta["val"] = evaluate_again(node, mode)


def refresh_views(node: Node, stale: frozenset[int], mode: FakeTensorMode | None) -> None:
    """Make the fake values of a node's users again, as far as they lie in stale storages.

    What such a user made beside them is stale then, too. Takes time by what depends on the node,
    where `refresh_fakes` takes time by the graph.
    """
    for user in node.users:
        before = storages_of(user)
        if before & stale and "unbacked_bindings" not in user.meta:
            user.meta["val"] = evaluate_again(user, mode)
            refresh_views(user, stale | (before - storages_of(user)), mode)


@contextmanager
def _no_guards(mode: FakeTensorMode | None) -> Generator[None]:
    environment = mode.shape_env if mode is not None else None
    if environment is None:
        yield
        return
    with environment.suppress_guards():
        yield
