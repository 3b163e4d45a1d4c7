"""Between a model's own call and its graph: arguments to inputs, outputs to the result.

Where both follow from what Dynamo recorded, they become code without a lookup of any module. Where
not (a call that also writes attributes, a result that is not built from outputs), Dynamo's own
function does it.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ir_core.generated_code import build
from ir_passes.compiling.source_path import SourcePath
from ir_passes.errors import CompileError
from ir_passes.tracing.graph_input import GraphInput
from ir_passes.tracing.model_trace import ModelTrace, target_of

Flat = Callable[..., Sequence[Any]]

_EFFECTS = ("CALL", "STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR")
_BRACKETS = {tuple: "({})", list: "[{}]", dict: "{{{}}}"}


@dataclass(frozen=True, slots=True)
class Interface:
    """How a model is called, and how its graph is.

    Attributes:
        signature: of the function that was traced, without `self`.
        inputs: the graph's, in order.
        result: code that builds the model's result of `outputs`; None where it cannot be written.
    """

    trace: ModelTrace
    owner: object | None
    signature: inspect.Signature
    inputs: tuple[GraphInput, ...]
    result: str | None

    @classmethod
    def of(cls, trace: ModelTrace) -> Interface:
        """Work out the interface of a traced model."""
        target = target_of(trace.function)
        owner = getattr(target, "__self__", None)
        inputs = trace.whole.inputs
        result = None if _has_side_effects(trace) else _result(trace)
        return cls(trace, owner, inspect.signature(target), inputs, result)

    @property
    def is_direct(self) -> bool:
        """Whether a call needs nothing of Dynamo's and nothing of AOTAutograd's."""
        if self.result is None or self.trace.whole.functionalized is not None:
            return False
        return all(self._path(each) is not None for each in self.inputs)

    def state(self) -> dict[int, Any]:
        """The model's tensors by the position of their input, as they are now.

        Raises:
            CompileError: an input that is no longer where it was.
        """
        values: dict[int, Any] = {}
        for position, each in enumerate(self.inputs):
            path = self._path(each)
            if path is None or not self._is_state(path):
                continue
            try:
                values[position] = path.resolve(self._locals(), self.trace.global_names)
            except (KeyError, AttributeError, IndexError, TypeError) as error:
                raise CompileError(
                    f"`{each.path}` is gone from the model: {type(error).__name__}: {error}"
                ) from error
        return values

    def wrap(self, program: Flat) -> Callable[..., Any]:
        """A function with the model's signature that calls a program.

        A direct interface calls it with the inputs that are no state, any other with all.
        """
        if not self.is_direct:
            return self.trace.call_with(program)
        paths = [path for each in self.inputs if (path := self._path(each)) is not None]
        given = ", ".join(path.expression() for path in paths if not self._is_state(path))
        names = tuple(self.signature.parameters)
        text = (
            f"def call({', '.join(names)}):\n"
            f"    outputs = program({given})\n"
            f"    return {self.result}\n"
        )
        return build("call", text, {"program": program}, "compiled", self._defaults())

    def _path(self, each: GraphInput) -> SourcePath | None:
        return SourcePath.parse(each.source) if each.source else None

    def _is_state(self, path: SourcePath) -> bool:
        return not path.is_local or path.root not in self.signature.parameters

    def _locals(self) -> Mapping[str, Any]:
        return {"self": self.owner} if self.owner is not None else {}

    def _defaults(self) -> tuple[Any, ...]:
        values = (each.default for each in self.signature.parameters.values())
        return tuple(each for each in values if each is not inspect.Parameter.empty)


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
