"""Where timing meets a compiler: one call of an op, as a compiled model would run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from ir_core.implementation import Implementation

CompiledCall = Callable[[Sequence[Tensor]], object]
"""Takes what `tensors_of` gives of a call's values."""


class CallCompiler(Protocol):
    """Compiles calls of ops one by one, with the compiler and the options of a model's pieces."""

    @property
    def description(self) -> str:
        """What compiles, and with which options: times of other code say nothing of this."""
        ...

    def compile(
        self, implementation: Implementation, calls: Mapping[int, Sequence[Any]]
    ) -> Mapping[int, CompiledCall]:
        """Functions for calls like these; they may spoil the activations of an op that allows it.

        Args:
            implementation: the one that the code must have.
            calls: the values of one call by number of tokens, one per parameter. They differ in
                token dims and in what tensors hold.

        Returns:
            A function for each number of tokens.

        Raises:
            TuningTimeError: no time is left for it.
            Exception: it cannot be compiled; says why.
        """
        ...


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """What a compiled call is given of the values of a call."""
    return [each for each in values if isinstance(each, Tensor)]
