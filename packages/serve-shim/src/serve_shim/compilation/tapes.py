"""Owns the tapes of a model's small steps: one for each program, since a tape records only one.

A model has several programs for small steps where a choice or a pass changes with their size.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ir_kernels.tape import TapeError
from ir_passes import CompiledModel
from serve_shim.compilation.taped import TapedSteps, fewest_tokens
from serve_shim.engine.step_memory import StepInputs
from serve_shim.models.attention_step import AttentionStep

Sizes = tuple[int, int]


class Tapes:
    """Runs steps of up to `num_tokens` tokens from the tape of their program; the same numbers.

    Larger ones, and those that no tape holds, run as compiled. See `TapedSteps` for the arguments.
    Raises its `TapeError` where no program can be recorded.

    Attributes:
        taped: the tapes, those of most tokens first.
        untaped: why steps of the fewest to the most tokens of a program run from none.
    """

    def __init__(
        self,
        model: CompiledModel,
        buffers: StepInputs,
        caches: Sequence[Tensor],
        num_tokens: int,
    ) -> None:
        self._model = model
        self.taped: list[TapedSteps] = []
        failures: dict[Sizes, TapeError] = {}
        last = num_tokens
        while last:
            first = fewest_tokens(model, last)
            try:
                self.taped.append(TapedSteps(model, buffers, caches, last))
            except TapeError as error:
                failures[first, last] = error
            last = first - 1
        if not self.taped:
            raise next(iter(failures.values()))
        self.untaped: Mapping[Sizes, TapeError] = failures
        self._by_count = {
            count: each for each in self.taped for count in range(each.sizes[0], each.sizes[1] + 1)
        }

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Hidden states [T, hidden] of a step of T tokens."""
        num_tokens = len(input_ids)
        forward = self._by_count.get(num_tokens) or self._model.program_for(num_tokens)
        hidden: Tensor = forward(input_ids, positions, step)
        return hidden
