"""Between a model's own call and its graph: arguments to inputs, outputs to the result.

Both are code without a lookup of any module, where they follow from what the trace recorded. Where
not (a call that also writes attributes, a result that is not built from outputs), `indirect` is the
function that does it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ir_core.generated_code import build
from ir_passes.errors import CompileError
from ir_passes.programs.program import Flat
from ir_passes.programs.source_path import SourcePath
from ir_passes.tracing.dynamic_dims import TOKENS, DynamicDim
from ir_passes.tracing.graph_input import GraphInput

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Interface:
    """How a model is called, and how its graph is.

    Attributes:
        target: the function that was traced: a module's `forward`, bound, or a function.
        inputs: the graph's, in order.
        dims: the dims of arguments that vary.
        names: the globals that inputs may come from.
        result: code that builds the model's result of `outputs`; None where it cannot be written.
        indirect: makes a function with the model's signature of one that takes all inputs; None
            where the interface is direct.
    """

    target: Call
    inputs: tuple[GraphInput, ...]
    dims: tuple[DynamicDim, ...]
    names: Mapping[str, Any] = field(repr=False)
    result: str | None = None
    indirect: Callable[[Flat], Call] | None = field(default=None, repr=False)

    @property
    def signature(self) -> inspect.Signature:
        """Of the target, without `self`."""
        return inspect.signature(self.target)

    @property
    def is_direct(self) -> bool:
        """Whether a call needs nothing of Dynamo's and nothing of AOTAutograd's."""
        return self.indirect is None

    def state(self) -> dict[int, Any]:
        """The model's tensors by the position of their input, as they are now.

        Raises:
            CompileError: an input that is no longer where it was.
        """
        values: dict[int, Any] = {}
        parameters = self.signature.parameters
        for position, each in enumerate(self.inputs):
            path = path_of(each)
            if path is None or not _is_state(path, parameters):
                continue
            try:
                values[position] = path.resolve(self._locals(), self.names)
            except (KeyError, AttributeError, IndexError, TypeError) as error:
                raise CompileError(
                    f"`{each.path}` is gone from the model: {type(error).__name__}: {error}"
                ) from error
        return values

    def wrap(self, program: Flat) -> Call:
        """A function with the model's signature that calls a program.

        A direct interface calls it with the inputs that are no state, any other with all.
        """
        if self.indirect is not None:
            return self.indirect(program)
        parameters = self.signature.parameters
        paths = [path for each in self.inputs if (path := path_of(each)) is not None]
        given = (path.expression() for path in paths if not _is_state(path, parameters))
        text = (
            f"def call({', '.join(parameters)}):\n"
            f"    outputs = program({', '.join(given)})\n"
            f"    return {self.result}\n"
        )
        return build("call", text, {"program": program}, "compiled", self._defaults())

    def counter(self) -> Callable[..., int]:
        """A function with the model's signature that tells the token count of a call."""
        found = next((each for each in self.dims if each.label == TOKENS), None)
        names = ", ".join(self.signature.parameters)
        if found is None:
            return build("count", f"def count({names}):\n    return 1\n", {}, "compiled")
        name, *steps = found.path.split(".")
        kinds = tuple(("index", each) if each.isdigit() else ("attribute", each) for each in steps)
        tensor = SourcePath(True, name, kinds).expression()
        text = f"def count({names}):\n    return {tensor}.shape[{found.dim}]\n"
        return build("count", text, {}, "compiled", self._defaults())

    def _locals(self) -> Mapping[str, Any]:
        owner = getattr(self.target, "__self__", None)
        return {} if owner is None else {"self": owner}

    def _defaults(self) -> tuple[Any, ...]:
        values = (each.default for each in self.signature.parameters.values())
        return tuple(each for each in values if each is not inspect.Parameter.empty)


def path_of(each: GraphInput) -> SourcePath | None:
    """Where an input comes from; None where that cannot be walked."""
    return SourcePath.parse(each.source) if each.source else None


def _is_state(path: SourcePath, parameters: Mapping[str, Any]) -> bool:
    return not path.is_local or path.root not in parameters
