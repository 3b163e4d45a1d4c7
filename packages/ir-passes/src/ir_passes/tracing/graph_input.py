"""Inputs of a traced graph: where in the model each one comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from ir_passes.location import INPUT_PATH

_ROOT = re.compile(r"^[LG]\['([^']+)'\]")
_CONTAINERS = re.compile(r"\._(?:modules|parameters|buffers)(?=\[)")
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder.

    Attributes:
        path: readable place in the model, `self.layers.0.norm.weight`.
        source: the same as Dynamo spells it, an expression; "" where there is none.
        is_state: it belongs to the model (a parameter, a buffer, any attribute, a global), so the
            next call reads it again; an argument of the call does not.
    """

    path: str
    source: str = ""
    is_state: bool = False

    @classmethod
    def of(cls, placeholder: Node) -> GraphInput:
        """Read what Dynamo left on a placeholder; one of another origin is an argument."""
        source: Any = getattr(placeholder, "_dynamo_source", None)
        if source is None:
            return cls(placeholder.name)
        name = str(source.name)
        is_argument = source.guard_source.name == "LOCAL" and "__closure__" not in name
        return cls(readable_path(name), name, not is_argument)


def label_inputs(graph: Graph, inputs: tuple[GraphInput, ...]) -> None:
    """Write the paths on the placeholders, for the printer."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, each in zip(placeholders, inputs, strict=True):
        node.meta[INPUT_PATH] = each.path


def readable_path(name: str) -> str:
    """The path of a source as Dynamo spells it: `step.slots` of `L['step'].slots`."""
    name = _CONTAINERS.sub("", _ROOT.sub(r"\1", name))
    return _KEY.sub(lambda found: f".{found[1] or found[2]}", name)
