"""Capture without a device for it: runs the function anew, but holds it to what a graph demands.

Everything around capture (sizes, padding, who keeps which memory) is so tested on a CPU, and a
program that would compute garbage as a graph raises here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir_passes.backends.piece import CompiledPiece
from ir_passes.capture.static_inputs import StaticInputs
from ir_passes.capture.static_outputs import StaticOutputs


class RecordingRunner:
    """A `CaptureRunner` whose graphs own their outputs' memory and check their inputs each time.

    Graphs of one name share the memory of their outputs: one for fewer tokens lies at the front of
    that of the largest.
    """

    def __init__(self, num_warmups: int = 1) -> None:
        self._num_warmups = num_warmups
        self._memory: dict[tuple[str, int], Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all outputs."""
        return sum(each.nbytes for each in self._memory.values())

    def capture(
        self,
        name: str,
        function: CompiledPiece,
        inputs: Sequence[Any],
        input_names: Sequence[str],
    ) -> tuple[RecordedGraph, Sequence[Any]]:
        """Warm a function up, run it and keep what it was run with; see `CaptureRunner`."""
        static = StaticInputs(name, input_names, inputs)

        def take(index: int, num_bytes: int, device: torch.device) -> Tensor:
            return self._take((name, index), num_bytes, device)

        with torch.no_grad():
            for _ in range(self._num_warmups):
                function(list(inputs))
            outputs = StaticOutputs(name, function(list(inputs)), inputs, take)
        return RecordedGraph(function, static, outputs), outputs.values

    def _take(self, key: tuple[str, int], num_bytes: int, device: torch.device) -> Tensor:
        held = self._memory.get(key)
        if held is None or held.nbytes < num_bytes or held.device != device:
            with torch.inference_mode(False):
                held = self._memory[key] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return held[:num_bytes]


class RecordedGraph:
    """A function, with what its inputs were and memory for its outputs."""

    def __init__(
        self, function: CompiledPiece, inputs: StaticInputs, outputs: StaticOutputs
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._outputs = outputs
        self._num_replays = 0

    @property
    def num_replays(self) -> int:
        """How often it was replayed."""
        return self._num_replays

    @torch.no_grad()
    def replay(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Check the inputs, run the function on them and copy what it returns."""
        self._inputs.check(inputs)
        self._outputs.store(self._function(list(inputs)), inputs)
        self._num_replays += 1
        return self._outputs.values
