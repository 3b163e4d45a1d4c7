"""Plans of programs as JSON, and back, with the values and constants in their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ir_passes.cache.constants import Description, describe_nested, restore_constant
from ir_passes.programs.plan import (
    CallStep,
    ItemStep,
    PieceStep,
    ProgramPlan,
    SizeStep,
    Step,
    Value,
)


def plan_to_json(plan: ProgramPlan) -> Mapping[str, Any]:
    """A plan as plain JSON types.

    Raises:
        CannotStoreError: an argument of a call is no constant.
    """
    return {
        "inputs": list(plan.inputs),
        "sizes": [[each.name, each.source, each.dim] for each in plan.sizes],
        "steps": [_step_to_json(step) for step in plan.steps],
        "results": describe(plan.results),
        "constants": list(plan.constants),
        "overwritten": sorted(plan.overwritten),
    }


def plan_from_json(value: Any) -> ProgramPlan:
    """The plan that `plan_to_json` wrote."""
    return ProgramPlan(
        tuple(value["inputs"]),
        tuple(SizeStep(*each) for each in value["sizes"]),
        tuple(_step_from_json(*each) for each in value["steps"]),
        restore(value["results"]),
        tuple(value["constants"]),
        frozenset(value["overwritten"]),
    )


def describe(value: Any) -> Description:
    """A nest of arguments as JSON.

    Raises:
        CannotStoreError: something in it is neither a value nor a constant.
    """
    if isinstance(value, Value):
        return ["value", value.name]
    # FX keeps arguments in lists and dicts of its own.
    if isinstance(value, list):
        return ["list", *map(describe, value)]
    if isinstance(value, dict):
        return ["dict", *([key, describe(each)] for key, each in value.items())]
    return describe_nested(value, describe)


def restore(description: Description) -> Any:
    """The nest of arguments that `describe` described."""
    if not isinstance(description, list):
        return restore_constant(description)
    tag, *parts = description
    known = _RESTORE.get(tag)
    return restore_constant(description) if known is None else known(parts)


def _step_to_json(step: Step) -> list[Any]:
    match step:
        case PieceStep():
            return [
                "piece", step.name, list(step.inputs), list(step.outputs), list(step.labels),
                list(step.moving),
            ]  # fmt: skip
        case CallStep():
            return [
                "call",
                step.name,
                step.target,
                describe(step.args),
                describe(dict(step.kwargs)),
            ]
        case ItemStep():
            return ["item", step.name, step.source, step.index]


def _step_from_json(kind: str, *parts: Any) -> Step:
    if kind == "piece":
        name, *lists = parts
        return PieceStep(name, *map(tuple, lists))
    if kind == "call":
        name, target, args, kwargs = parts
        return CallStep(name, target, restore(args), restore(kwargs))
    return ItemStep(*parts)


def _named(parts: list[Any]) -> Any:
    return getattr(torch, parts[0].removeprefix("torch."))


_RESTORE: Mapping[str, Callable[[list[Any]], Any]] = {
    "value": lambda parts: Value(*parts),
    "list": lambda parts: [restore(each) for each in parts],
    "tuple": lambda parts: tuple(restore(each) for each in parts),
    "dict": lambda parts: {key: restore(each) for key, each in parts},
    "device": lambda parts: torch.device(parts[0]),
    "dtype": _named,
    "layout": _named,
    "memory format": _named,
}
