"""How a model is called, as JSON and back: the inputs of its graph, and what calls must share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ir_passes.cache.plan_json import describe, restore
from ir_passes.errors import CannotStoreError
from ir_passes.programs.argument_check import ArgumentCheck, ExpectedTensor
from ir_passes.programs.interface import Call, Interface, path_of
from ir_passes.tracing.dynamic_dims import DynamicDim
from ir_passes.tracing.graph_input import GraphInput


def interface_to_json(interface: Interface) -> Any:
    """An interface as plain JSON types, but for the model itself.

    Raises:
        CannotStoreError: a call needs what only the trace has.
    """
    if not interface.is_direct:
        raise CannotStoreError(
            "A call of the model does more than to run the graph (it writes attributes, or returns "
            "its inputs or views of them), and only Dynamo's own function does that."
        )
    for each in interface.inputs:
        path = path_of(each)
        if path is not None and not path.is_local and path.root not in _globals(interface.target):
            raise CannotStoreError(f"`{each.path}` is read through a name that the trace made.")
    return {
        "inputs": [[each.path, each.source, each.is_state] for each in interface.inputs],
        "dims": [[each.path, each.dim, each.label] for each in interface.dims],
        "result": interface.result,
    }


def interface_from_json(value: Any, target: Call) -> Interface:
    """The interface that `interface_to_json` wrote, of another model's function."""
    return Interface(
        target,
        tuple(GraphInput(*each) for each in value["inputs"]),
        tuple(DynamicDim(*each) for each in value["dims"]),
        _globals(target),
        value["result"],
    )


def _globals(target: Call) -> Mapping[str, Any]:
    return getattr(target, "__globals__", {})


def check_to_json(check: ArgumentCheck) -> Any:
    """What is checked of a call's arguments, as plain JSON types.

    Raises:
        CannotStoreError: an argument of the example is no constant.
    """
    tensors = {
        path: [describe(each.dtype), describe(each.device), list(each.shape), list(each.strides)]
        for path, each in check.tensors.items()
    }
    return {
        "tensors": tensors,
        "constants": {path: describe(value) for path, value in check.constants.items()},
        "unread": sorted(check.unread),
    }


def check_from_json(value: Any, signature: inspect.Signature) -> ArgumentCheck:
    """The check that `check_to_json` wrote, for a function of this signature."""
    tensors = {
        path: ExpectedTensor(restore(dtype), restore(device), tuple(shape), tuple(strides))
        for path, (dtype, device, shape, strides) in value["tensors"].items()
    }
    constants = {path: restore(each) for path, each in value["constants"].items()}
    return ArgumentCheck(signature, tensors, constants, frozenset(value["unread"]))
