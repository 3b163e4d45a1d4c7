"""Backends that interpret the graph that they are given: with IR ops intact, or lowered."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Interpreter

from ir_passes import Backend, BackendContext, GraphForm
from ir_passes.backends.base import CompiledPiece


class ToyFunctional(Backend):
    """Leaves the choice of implementations to each call.

    Attributes:
        seen: number of nodes by IR op in all pieces so far.
    """

    name = "toy_functional"
    form = GraphForm.FUNCTIONAL

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Count the IR ops and keep the graph as it is."""
        self.seen.update(_ops(module, context))
        return _interpret(module)


class ToyLowered(Backend):
    """Runs the implementations that were chosen before it."""

    name = "toy_lowered"
    form = GraphForm.LOWERED

    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Keep the graph as it is; an IR op in it is a mistake of the caller."""
        left = _ops(module, context)
        if left:
            raise ValueError(f"{left} are not lowered")
        return _interpret(module)


functional = ToyFunctional()


def _ops(module: GraphModule, context: BackendContext) -> list[str]:
    ops = map(context.dialect.op_of, module.graph.nodes)
    return [op.name for op in ops if op is not None]


def _interpret(module: GraphModule) -> CompiledPiece:
    interpreter = Interpreter(module)

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = interpreter.run(*inputs)
        return outputs

    return run
