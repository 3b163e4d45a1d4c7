"""Captures the program of one token count: piece by piece, or as a whole with its splitting ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ir_passes.backends.piece import CompiledPiece
from ir_passes.capture.runner import CapturedGraph, CaptureRunner
from ir_passes.errors import CaptureError
from ir_passes.programs.compiled_model import BoundProgram, CompiledModel
from ir_passes.programs.plan import PieceStep


@dataclass(frozen=True, slots=True)
class CapturedProgram:
    """A program for exactly the tensors that it was captured with.

    Attributes:
        call: takes the model's arguments, whose tensors must lie where they lay; its result is
            valid until the next call of any program of the same runner.
        graphs: one for each piece, or one for the whole.
    """

    call: Callable[..., Any]
    graphs: tuple[CapturedGraph, ...]


def capture_pieces(
    model: CompiledModel, num_tokens: int, arguments: Sequence[Any], runner: CaptureRunner
) -> CapturedProgram:
    """Capture each piece of a program by running it once; splitting ops run as ever.

    Only what reaches a piece must keep its memory: arguments that splitting ops alone take may be
    others, of other sizes, on every call. What a splitting op returns is copied to where the piece
    after it reads.

    Args:
        arguments: a call of `num_tokens` tokens that does no harm: the splitting ops run too.

    Raises:
        CaptureError: a piece cannot be captured, or there is none.
        CompileError: nothing was compiled for this token count.
    """
    pieces = _Pieces(runner)
    program = model.bind(num_tokens, pieces.wrap)
    with torch.no_grad():
        program.call(*arguments)
    graphs = tuple(each.graph for each in pieces.all if each.graph is not None)
    if not graphs:
        raise CaptureError("The program has no piece, only splitting ops: there is nothing to run.")
    return CapturedProgram(program.call, graphs)


def capture_whole(
    model: CompiledModel, num_tokens: int, arguments: Sequence[Any], runner: CaptureRunner
) -> CapturedProgram:
    """Capture a program as one graph, its splitting ops too.

    A replay checks the model's own tensors as well as the arguments.

    Args:
        arguments: a call of `num_tokens` tokens that does no harm.

    Raises:
        CaptureError: the program cannot be captured.
        CompileError: nothing was compiled for this token count.
    """
    whole = _WholeProgram(model.bind(num_tokens), arguments)
    graph, _ = runner.capture("program", whole.run, whole.inputs(arguments), whole.names)

    def call(*given: Any) -> Any:
        return whole.result(graph.replay(whole.inputs(given)))

    return CapturedProgram(call, (graph,))


class _WholeProgram:
    """A program as a function of flat inputs: those of its arguments, then the model's tensors.

    Attributes:
        names: of the inputs: `input_ids`, `step.seq_lens`, `self.norm.weight`.
    """

    def __init__(self, program: BoundProgram, arguments: Sequence[Any]) -> None:
        if program.state is None:
            raise CaptureError(
                "Code of the model itself runs on every call (it writes attributes, say), and a "
                "graph would leave it out; capture its pieces instead (PIECEWISE)."
            )
        self._call = program.call
        self._state = tuple(program.state.values())
        self._arguments = pytree.tree_structure(tuple(arguments))
        self._result: Any = None
        self.names = [*_names(program.parameters, arguments), *program.state]

    def inputs(self, arguments: Sequence[Any]) -> list[Any]:
        """The inputs of a call."""
        return [*pytree.tree_leaves(tuple(arguments)), *self._state]

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the program and flatten its result."""
        given = inputs[: self._arguments.num_leaves]
        arguments = pytree.tree_unflatten(given, self._arguments)
        outputs, self._result = pytree.tree_flatten(self._call(*arguments))
        return outputs

    def result(self, outputs: Sequence[Any]) -> Any:
        """The model's result of flat outputs."""
        return pytree.tree_unflatten(outputs, self._result)


def _names(parameters: Sequence[str], arguments: Sequence[Any]) -> list[str]:
    """A name for each tensor of a call: `input_ids`, `step.seq_lens`."""
    return [
        f"{parameter}{pytree.keystr(path)}"
        for parameter, argument in zip(parameters, arguments, strict=False)
        for path, _ in pytree.tree_flatten_with_path(argument)[0]
    ]


class _Pieces:
    """The pieces of one program, met in the order in which they run."""

    def __init__(self, runner: CaptureRunner) -> None:
        self._runner = runner
        self.all: list[_CapturedPiece] = []

    def wrap(self, piece: PieceStep, call: CompiledPiece) -> CompiledPiece:
        """Code that captures the piece when it is called first."""
        wrapped = _CapturedPiece(piece, call, self._runner)
        self.all.append(wrapped)
        return wrapped


class _CapturedPiece:
    """A piece's code for one token count: captured by the first call, replayed by all others."""

    def __init__(self, piece: PieceStep, call: CompiledPiece, runner: CaptureRunner) -> None:
        self._name = piece.name
        self._input_names = list(piece.labels)
        self._call = call
        self._moving = piece.moving
        self._runner = runner
        self._copies: dict[int, Tensor] = {}
        self.graph: CapturedGraph | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        for position in self._moving:
            if isinstance(inputs[position], Tensor):
                inputs[position] = self._settled(position, inputs[position])
        if self.graph is not None:
            return self.graph.replay(inputs)
        self.graph, outputs = self._runner.capture(
            self._name, self._call, inputs, self._input_names
        )
        return outputs

    def _settled(self, position: int, value: Tensor) -> Tensor:
        """The same values in memory that stays."""
        copy = self._copies.get(position)
        if copy is None:
            copy = self._copies[position] = value.clone()
        elif copy.shape != value.shape:
            raise CaptureError(
                f"`{self._input_names[position]}`, an input of `{self._name}`, has shape "
                f"{tuple(value.shape)}, and was captured with {tuple(copy.shape)}."
            )
        return copy.copy_(value)
