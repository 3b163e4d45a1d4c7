"""Owns the tape of a model's small steps: when it may stand for the compiled program, and proof.

On a CPU a step of few tokens is bound by its weights, and what Python and torch do between two
kernels is time in which no memory is read. A tape runs the same kernels without either.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ir_kernels.tape import Tape, TapeError
from ir_passes import CompiledModel
from serve_shim.engine.step_memory import StepInputs
from serve_shim.models.attention_step import AttentionStep

Forward = Callable[[Tensor, Tensor, AttentionStep], Tensor]

_TRIAL_STEPS = 2
_TRIAL_REQUESTS = 3


class TapedSteps:
    """Runs steps from the tape of one program, that of `num_tokens` tokens; the same numbers.

    Steps have as many tokens as `sizes` says and lie in `buffers`, the engine's; those elsewhere
    run as the program. A result is valid until the next call. `caches` are the model's, and nobody
    uses their first blocks yet.

    Raises `TapeError` where the program computes what no tape holds, or a replay gave other bits.
    """

    def __init__(
        self,
        model: CompiledModel,
        buffers: StepInputs,
        caches: Sequence[Tensor],
        num_tokens: int,
    ) -> None:
        self._addresses = _addresses(buffers.input_ids, buffers.positions, buffers.attention)
        self._program = model.program_for(num_tokens)
        self._tape, self._hidden = self._record(buffers.first(num_tokens, num_tokens))
        self._first = fewest_tokens(model, num_tokens)
        self._prove(buffers, caches)

    @property
    def sizes(self) -> tuple[int, int]:
        """The fewest and most tokens of a step that runs from the tape."""
        return self._first, self._tape.num_tokens

    @property
    def num_kernels(self) -> int:
        """Kernels of a step."""
        return self._tape.num_steps

    @property
    def num_bytes(self) -> int:
        """Memory between them."""
        return self._tape.num_bytes

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Hidden states [T, hidden] of a step of T tokens."""
        if _addresses(input_ids, positions, step) != self._addresses:
            # Not the engine's own step: a comparison with the eager model, for example.
            return self._program(input_ids, positions, step)
        num_tokens = len(input_ids)
        self._tape.replay(num_tokens, len(step.seq_lens))
        return self._hidden[:num_tokens]

    def _record(self, inputs: StepInputs) -> tuple[Tape, Tensor]:
        arguments = (inputs.input_ids, inputs.positions, inputs.attention)
        with torch.inference_mode():
            return Tape.record(len(inputs.input_ids), lambda: self._program(*arguments))

    def _prove(self, buffers: StepInputs, caches: Sequence[Tensor]) -> None:
        """Compare steps of the tape with the program's, bit by bit, and leave no trace of them."""
        most = min(_TRIAL_REQUESTS, self._tape.num_tokens, len(caches[0]))
        for num_requests in sorted({self._first, max(self._first, most)}):
            wanted = self._trial(buffers, caches, num_requests, self._program)
            self._tape.poison()
            found = self._trial(buffers, caches, num_requests, self)
            if not torch.equal(wanted, found):
                raise TapeError(
                    f"a step of {num_requests} tokens gave other bits from the tape than from the "
                    "program: some kernel depends on what a step does not hold"
                )

    @torch.inference_mode()
    def _trial(
        self, buffers: StepInputs, caches: Sequence[Tensor], num_requests: int, forward: Forward
    ) -> Tensor:
        """Bits of hidden states [steps, R, bytes], each request one token at a time from its first.

        R requests have a block of the cache each, which must then be there.
        """
        inputs = buffers.first(num_requests, num_requests)
        saved = [each.clone() for each in _tensors(buffers)]
        rows = torch.arange(num_requests)
        ids, positions, step = inputs.input_ids, inputs.positions, inputs.attention
        hidden: list[Tensor] = []
        try:
            step.block_table[:, 0] = rows
            step.query_start_loc.copy_(torch.arange(num_requests + 1))
            for position in range(min(_TRIAL_STEPS, caches[0].shape[3])):
                ids.copy_(rows * 7 + position + 3)
                positions.fill_(position)
                step.seq_lens.fill_(position + 1)
                step.slot_mapping.copy_(rows * caches[0].shape[3] + position)
                hidden.append(forward(ids, positions, step).clone().view(torch.uint8))
        finally:
            for each, before in zip(_tensors(buffers), saved, strict=True):
                each.copy_(before)
            for cache in caches:
                cache[:num_requests] = 0
        return torch.stack(hidden)


def fewest_tokens(model: CompiledModel, num_tokens: int) -> int:
    """The fewest tokens whose program is that of `num_tokens`; fewer have one of their own."""
    program = model.program_for(num_tokens)
    return next(each for each in range(1, num_tokens + 1) if model.program_for(each) is program)


def _tensors(buffers: StepInputs) -> tuple[Tensor, ...]:
    return (buffers.input_ids, buffers.positions, *buffers.attention)


def _addresses(input_ids: Tensor, positions: Tensor, step: AttentionStep) -> tuple[int, ...]:
    return (
        input_ids.data_ptr(),
        positions.data_ptr(),
        step.block_table.data_ptr(),
        step.seq_lens.data_ptr(),
        step.query_start_loc.data_ptr(),
        step.slot_mapping.data_ptr(),
    )
