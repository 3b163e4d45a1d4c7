"""Owns the captured graphs of a model's steps and runs each step as one of them where one fits.

A graph reads the engine's static buffers. A step with fewer rows than a graph runs with padding,
which `StepBuffers` keeps harmless: token 0 at position 0 that is written to no slot of the cache,
and requests without tokens. Rows do not depend on one another, so padding changes no result.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from ir_passes import CompiledModel
from ir_passes.capture.captured_program import CapturedProgram, capture_pieces, capture_whole
from ir_passes.capture.runner import CaptureRunner
from ir_passes.config import CudagraphMode
from ir_passes.errors import CaptureError
from serve_shim.compilation.capture_counters import CaptureCounters
from serve_shim.compilation.graph_table import GraphKey, GraphTable, Uncaptured
from serve_shim.engine.step_memory import StepInputs
from serve_shim.models.attention_step import AttentionStep

Progress = Callable[[int, int], None]

_NAMES = ("input_ids", "positions", *(f"step.{name}" for name in AttentionStep._fields))


class CapturedSteps:
    """Runs steps as `CompiledModel` does, with the same numbers, as graphs.

    `buffers` are the whole static buffers, of which each step is the first rows. A result is valid
    until the next call.
    """

    def __init__(
        self, model: CompiledModel, buffers: StepInputs, table: GraphTable, runner: CaptureRunner
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._table = table
        self._runner = runner
        self._addresses = [each.data_ptr() for each in _model_inputs(buffers)]
        self._padded: dict[tuple[int, int], StepInputs] = {}
        self._programs: dict[GraphKey, CapturedProgram] = {}
        self.counters = CaptureCounters.of(table.keys)

    @torch.inference_mode()
    def capture(self, progress: Progress) -> None:
        """Capture every graph, on steps of nothing but padding.

        Raises `CaptureError`: a size cannot be captured, which it names, or a step ran already.
        """
        if (self._buffers.attention.slot_mapping >= 0).any():
            raise CaptureError("Capture before the first step: the buffers name slots to write.")
        started, keys = time.monotonic(), self._table.keys
        for done, key in enumerate(keys):
            progress(done, len(keys))
            try:
                self._programs[key] = self._capture(key)
            except CaptureError as error:
                raise CaptureError(f"{key.tokens} tokens, {key.mode.value}: {error}") from error
        progress(len(keys), len(keys))
        counters = self.counters
        counters.num_graphs = sum(len(each.graphs) for each in self._programs.values())
        counters.num_bytes = self._runner.num_bytes
        counters.seconds = time.monotonic() - started

    def release(self) -> None:
        """Give all graphs up, since they read tensors that the model no longer has."""
        self._programs.clear()

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Hidden states [T, hidden] of a step of T tokens.

        Raises `CaptureError`: an input does not lie in the static buffers, or a tensor of the model
        moved.
        """
        num_tokens, num_requests = len(input_ids), len(step.seq_lens)
        key = self._find(num_tokens, num_requests)
        if isinstance(key, Uncaptured):
            self.counters.uncaptured[key] += 1
            hidden: Tensor = self._model.program_for(num_tokens)(input_ids, positions, step)
            return hidden
        self._check(input_ids, positions, *step)
        self.counters.count_replay(key, num_tokens)
        padded = self._slice(key.requests or num_requests, key.tokens)
        return self._run(self._programs[key], padded)[:num_tokens]

    def _find(self, num_tokens: int, num_requests: int) -> GraphKey | Uncaptured:
        if not self._programs:
            return Uncaptured.REBOUND
        return self._table.find(num_tokens, num_requests)

    def _check(self, *inputs: Tensor) -> None:
        for name, address, each in zip(_NAMES, self._addresses, inputs, strict=True):
            if each.data_ptr() != address:
                raise CaptureError(
                    f"`{name}` of a step lies at {each.data_ptr()}, and graphs read the static "
                    f"buffer at {address}; fill that."
                )

    def _capture(self, key: GraphKey) -> CapturedProgram:
        if key.mode is CudagraphMode.FULL:
            inputs = self._slice(key.requests or 1, key.tokens)
            return capture_whole(self._model, key.tokens, _arguments(inputs), self._runner)
        inputs = self._slice(1, key.tokens)
        program = capture_pieces(self._model, key.tokens, _arguments(inputs), self._runner)
        # Fails, and before the first request, if a piece depends on the number of requests.
        self._run(program, self._slice(len(self._buffers.ends), key.tokens))
        return program

    def _slice(self, num_requests: int, num_tokens: int) -> StepInputs:
        known = self._padded.get((num_requests, num_tokens))
        if known is None:
            known = self._buffers.first(num_requests, num_tokens)
            self._padded[num_requests, num_tokens] = known
        return known

    def _run(self, program: CapturedProgram, inputs: StepInputs) -> Tensor:
        hidden: Tensor = program.call(*_arguments(inputs))
        return hidden


def _arguments(inputs: StepInputs) -> tuple[Tensor, Tensor, AttentionStep]:
    return inputs.input_ids, inputs.positions, inputs.attention


def _model_inputs(inputs: StepInputs) -> tuple[Tensor, ...]:
    return (inputs.input_ids, inputs.positions, *inputs.attention)
