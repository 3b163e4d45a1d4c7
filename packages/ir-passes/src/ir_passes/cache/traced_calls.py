"""Refuses traces that depend on Python code which was run, and neither inlined nor guarded.

What such code reads is unknown, so nothing could tell that it has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node

from ir_core import registry
from ir_passes.cache.descriptions import named
from ir_passes.errors import CannotStoreError

if TYPE_CHECKING:
    from ir_passes.tracing.model_trace import ModelTrace

_MARK = "_dynamo_marked_constant"
# Their kernels are torch's own, at torch's version.
_BUILT_IN = frozenset(("aten", "prims", "prim", "_c10d_functional"))
_TAKING_PYTHON = frozenset(
    ("flat_apply", "triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
)


def refuse_hidden_python(trace: ModelTrace) -> None:
    """Refuse calls of Python code that Dynamo did not look into, and the trace after it did.

    Raises:
        CannotStoreError: names the callable, or the op whose Python kernel was traced.
    """
    captured: GraphModule = trace.capture.backend_input.graph_module
    for node in _nodes(captured):
        if node.op == "call_function" and not _is_open(node.target):
            raise CannotStoreError(
                f"The graph calls `{_name(node.target)}`, whose Python code was not inlined, so a "
                "change of it would go unseen. Let it be traced, or make it an op with a kernel."
            )
        if node.op == "call_module":
            raise CannotStoreError(
                f"The graph calls the module `{node.target}`, whose code was not inlined."
            )
    remaining = set(_op_names(_nodes(trace.whole.module)))
    for name in sorted(set(_op_names(_nodes(captured))) - remaining):
        raise CannotStoreError(
            f"The op `{name}` was replaced by what its kernel calls, and a change of the kernel "
            "would go unseen. Give it a kernel for a device, not a composite one."
        )


class AssumedConstants:
    """Refuses functions whose results a trace takes for constants; looks once at each class."""

    def __init__(self) -> None:
        self._seen: set[type] = set()

    def refuse(self, value: object) -> None:
        """Refuse such a function, and a class or an instance of one that has such a method.

        Raises:
            CannotStoreError: names the function.
        """
        _refuse_assumed(value)
        kind = value if isinstance(value, type) else type(value)
        if kind not in self._seen:
            for base in kind.__mro__:
                for each in vars(base).values():
                    _refuse_assumed(each)
            self._seen.add(kind)


def _refuse_assumed(value: Any) -> None:
    inner = value.fget if isinstance(value, property) else value
    is_bound = isinstance(inner, staticmethod | classmethod | MethodType)
    function = inner.__func__ if is_bound else inner
    if isinstance(function, FunctionType) and _is_assumed(function):
        raise CannotStoreError(
            f"the result of `{function.__qualname__}` is assumed to be constant, so that nothing "
            "tells when it is another one"
        )


def _is_assumed(function: FunctionType) -> bool:
    is_torch = (function.__module__ or "").partition(".")[0] == "torch"
    return not is_torch and bool(vars(function).get(_MARK))


def _nodes(module: GraphModule) -> Iterator[Node]:
    for each in module.modules():
        if isinstance(each, GraphModule):
            yield from each.graph.nodes


def _is_open(target: Any) -> bool:
    """Whether a call shows all that it does: ops, torch's own functions and Python's built-ins."""
    if isinstance(target, HigherOrderOperator):
        return _is_native(type(target)) and target.name() not in _TAKING_PYTHON
    if isinstance(target, OpOverload | OpOverloadPacket):
        return True
    if isinstance(target, FunctionType):
        return _is_native(target) and _is_found(target)
    if isinstance(target, type | BuiltinFunctionType):
        return _is_native(target)
    # Dynamo's wrappers of NumPy's functions.
    return type(target).__module__ == "torch._dynamo.utils"


def _is_native(target: Any) -> bool:
    top = (target.__module__ or "torch").partition(".")[0]
    return top == "torch" or top in sys.stdlib_module_names


def _is_found(function: FunctionType) -> bool:
    """Whether torch's modules hold a function; one that torch makes may call anyone's code."""
    if named(function.__module__, function.__qualname__) is function:
        return True
    places = (torch, torch.nn.functional, torch.Tensor)
    return any(each is function for place in places for each in vars(place).values())


def _op_names(nodes: Iterable[Node]) -> Iterator[str]:
    """Names of the ops that are neither torch's nor of the IR, those inside wrappers too."""
    own = registry().namespace
    for node in nodes:
        for each in (node.target, *node.args):
            if isinstance(each, OpOverload | OpOverloadPacket):
                name = each._schema.name if isinstance(each, OpOverload) else str(each)
                name = name.replace("::", ".")
                if name.partition(".")[0] not in (*_BUILT_IN, own, f"{own}_impl"):
                    yield name


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or target)
