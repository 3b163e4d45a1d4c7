"""The implementations of an op as contenders, each in every layout that it reads."""

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ir_core.implementation import NATIVE, Implementation
from ir_core.op import IrOp
from ir_core.testing import CheckDeclined, require_selected
from serve_shim.models.weight_memory import WeightMemory
from tools.bench.contender import Call, Contender, num_copies


class Providers:
    """What can run a call of `op` like `values`, with packed weights that fill `footprint` bytes.

    Attributes:
        declined: name and reason of each implementation that cannot.
    """

    def __init__(self, op: IrOp, values: Sequence[Any], footprint: int) -> None:
        self._op = op
        self._values = tuple(values)
        self._num_bytes = _weight_bytes(op, values)
        self._copies = num_copies(self._num_bytes, footprint)
        self._selected = self._default()
        self.declined: list[tuple[str, str]] = []
        self._weights: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        for implementation in op.implementations.values():
            self._add(implementation)

    def contenders(self, x: Tensor) -> list[Contender]:
        """One contender for each provider and layout, on the activation `x`."""
        at = self._op.schema.names.index("x")
        return [
            Contender(
                name,
                [
                    self._call(name, (*values[:at], x, *values[at + 1 :]))
                    for values in self._weights[name, layout]
                ],
                self._num_bytes,
                layout,
                is_selected=(name, layout) == self._selected,
            )
            for name, layout in self._weights
        ]

    def _default(self) -> tuple[str, str]:
        choice = self._op.choose_layout(*self._values)
        return choice.selection.provider, choice.layout

    def _add(self, implementation: Implementation) -> None:
        name = implementation.provider
        # native reads every layout, by unpacking: only what it does with plain weights is its own.
        for layout in ("plain",) if name == NATIVE else implementation.layouts:
            try:
                require_selected(implementation, self._op.with_layout(self._values, layout))
            except CheckDeclined as declined:
                self.declined.append((name, str(declined)))
                continue
            packed = self._op.pack(_copied(self._values), layout)
            memory = WeightMemory()
            self._weights[name, layout] = [
                tuple(copied_into(memory, each) for each in packed) for _ in range(self._copies)
            ]

    def _call(self, name: str, values: Sequence[Any]) -> Call:
        return functools.partial(self._op.implementations[name].fn, *values)


def copied_into(memory: WeightMemory, value: Any) -> Any:
    """A copy of a tensor where the server would have it; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return memory.parameter(*value.shape, dtype=value.dtype).copy_(value).detach()


def _weight_bytes(op: IrOp, values: Sequence[Any]) -> int:
    weights = (values[op.schema.names.index(name)] for name in op.weights)
    return sum(weight.nbytes for weight in weights if weight is not None)


def _copied(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(each.clone() if isinstance(each, Tensor) else each for each in values)
