"""Arguments of a call by parameter name, as its schema orders and completes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from ir_core.suggestion import suggest


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a torch op; `is_required` where it has no default."""

    name: str
    default: Any
    is_required: bool


@cache
def parameters_of(target: OpOverload) -> tuple[Parameter, ...]:
    """The parameters of a torch op, in order."""
    return tuple(
        Parameter(each.name, each.default_value, not each.has_default_value())
        for each in target._schema.arguments
    )


def bound_arguments(node: Node) -> dict[str, Any]:
    """One value per parameter, defaults filled in: omitted and explicit defaults are the same.

    Raises:
        TypeError: the node does not call a torch op, or its arguments do not fit.
    """
    if not isinstance(node.target, OpOverload):
        raise TypeError(f"`{node.name}` calls {node.target!r}, which is no torch op.")
    return bind(node.target, node.args, node.kwargs)


def bind(target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """One value per parameter of an op for a call with these arguments.

    Raises:
        TypeError: a missing, surplus, repeated or unknown argument; names it.
    """
    parameters = parameters_of(target)
    if len(args) > len(parameters):
        raise TypeError(f"`{target}` takes {len(parameters)} arguments, got {len(args)}.")
    given = {parameter.name: value for parameter, value in zip(parameters, args, strict=False)}
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"`{target}` got `{name}` twice.")
        given[name] = value
    names = [parameter.name for parameter in parameters]
    for name in given:
        if name not in names:
            raise TypeError(f"`{target}` has no parameter `{name}`; {suggest(name, names)}")
    missing = [each.name for each in parameters if each.is_required and each.name not in given]
    if missing:
        raise TypeError(f"`{target}` misses {missing}; it is {target._schema}.")
    return {each.name: given.get(each.name, each.default) for each in parameters}
