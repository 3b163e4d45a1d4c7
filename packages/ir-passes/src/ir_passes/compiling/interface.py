"""The interface of a traced model, and what its later calls must share with the example."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import SymInt, Tensor

from ir_passes.metadata import fake_of
from ir_passes.programs.argument_check import ArgumentCheck, ExpectedTensor, named_leaves
from ir_passes.programs.interface import Interface, path_of
from ir_passes.programs.program import Flat
from ir_passes.tracing.dynamic_dims import target_of
from ir_passes.tracing.model_trace import ModelTrace

_EFFECTS = ("CALL", "STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")
_BRACKETS = {tuple: "({})", list: "[{}]", dict: "{{{}}}"}


def interface_of(trace: ModelTrace) -> Interface:
    """How a traced model is called: directly, or by the function that Dynamo made of it."""
    target, inputs = target_of(trace.function), trace.whole.inputs
    result = None if _has_side_effects(trace) else _result(trace)
    is_direct = result is not None and trace.whole.functionalized is None
    is_direct = is_direct and all(path_of(each) is not None for each in inputs)

    def indirect(program: Flat) -> Callable[..., Any]:
        return trace.call_with(trace.whole.bind(program))

    return Interface(
        target, inputs, trace.dims, trace.global_names, result, None if is_direct else indirect
    )


def argument_check_of(trace: ModelTrace) -> ArgumentCheck:
    """What the arguments of the traced call were like."""
    signature = inspect.signature(target_of(trace.function))
    fakes = _fakes_by_path(trace)
    tensors: dict[str, ExpectedTensor] = {}
    constants: dict[str, Any] = {}
    unread: set[str] = set()
    for path, value in named_leaves(signature, trace.args, trace.kwargs):
        if not isinstance(value, Tensor):
            constants[path] = value
        elif path in fakes:
            fake = fakes[path]
            shape, strides = _fixed(fake.shape), _fixed(fake.stride())
            tensors[path] = ExpectedTensor(fake.dtype, fake.device, shape, strides)
        else:
            unread.add(path)
    return ArgumentCheck(signature, tensors, constants, frozenset(unread))


def _fakes_by_path(trace: ModelTrace) -> Mapping[str, Tensor]:
    placeholders = trace.whole.module.graph.find_nodes(op="placeholder")
    return {
        each.path: fake_of(node)
        for each, node in zip(trace.whole.inputs, placeholders, strict=True)
        if isinstance(fake_of(node), Tensor)
    }


def _fixed(sizes: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(None if isinstance(each, SymInt) else int(each) for each in sizes)


class _CalledError(Exception):
    """Tells from inside a graph's call where in Dynamo's function it happens."""

    def __init__(self, caller: FrameType) -> None:
        super().__init__()
        self.code, self.offset = caller.f_code, caller.f_lasti


def _has_side_effects(trace: ModelTrace) -> bool:
    """Whether Dynamo's function does more with the graph's outputs than to return them.

    It is a list of instructions without a loop. What it writes to other objects, it writes by a
    call or a store after the call of the graph, which is found by not returning from it.
    """

    def program(*_: Any) -> Sequence[Any]:
        raise _CalledError(sys._getframe(1))

    try:
        trace.call_with(program)(*trace.args, **trace.kwargs)
    except _CalledError as called:
        later = (each for each in dis.get_instructions(called.code) if each.offset > called.offset)
        return any(each.opname.startswith(_EFFECTS) for each in later)
    return True


def _result(trace: ModelTrace) -> str | None:
    """Code for the result, found by calling Dynamo's function with marked outputs."""
    marks = [torch.empty(0) for _ in range(trace.num_outputs)]

    def program(*_: Any) -> Sequence[Any]:
        return marks

    return _spell(trace.call_with(program)(*trace.args, **trace.kwargs), marks)


def _spell(value: Any, marks: Sequence[Tensor]) -> str | None:
    """Code that builds a value of outputs and constants; None if there is none."""
    if isinstance(value, Tensor):
        places = [index for index, mark in enumerate(marks) if mark is value]
        return f"outputs[{places[0]}]" if places else None
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    parts: list[tuple[str, Any]] = []
    if type(value) in (tuple, list):
        parts = [("", each) for each in value]
    elif type(value) is dict and all(type(key) is str for key in value):
        parts = [(f"{key!r}: ", each) for key, each in value.items()]
    else:
        return None
    inside = _spell_all(parts, marks)
    return None if inside is None else _BRACKETS[type(value)].format(inside)


def _spell_all(parts: Sequence[tuple[str, Any]], marks: Sequence[Tensor]) -> str | None:
    spelled = [(prefix, _spell(value, marks)) for prefix, value in parts]
    if any(code is None for _, code in spelled):
        return None
    return "".join(f"{prefix}{code}, " for prefix, code in spelled)
