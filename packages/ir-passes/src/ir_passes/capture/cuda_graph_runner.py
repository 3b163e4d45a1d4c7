"""Capture as CUDA graphs: one memory pool and one stream for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ir_passes.backends.piece import CompiledPiece
from ir_passes.capture.static_inputs import StaticInputs
from ir_passes.errors import CaptureError


class CudaGraphRunner:
    """A `CaptureRunner` on one CUDA device.

    Graphs take their memory from one pool. What a graph returned is lent out again as soon as
    nothing holds the outputs of its capture, so smaller graphs fit into the memory of the largest.

    Raises:
        CaptureError: there is no CUDA device.
    """

    def __init__(self, device: torch.device | None = None, num_warmups: int = 1) -> None:
        if not torch.cuda.is_available():
            raise CaptureError("CUDA graphs need a CUDA device, and torch finds none.")
        self._num_warmups = num_warmups
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the captures took from the device's free memory."""
        return self._num_bytes

    def capture(
        self,
        name: str,
        function: CompiledPiece,
        inputs: Sequence[Any],
        input_names: Sequence[str],
    ) -> tuple[CudaGraph, Sequence[Any]]:
        """Warm a function up and record it, then run the graph once; see `CaptureRunner`."""
        static = StaticInputs(name, input_names, inputs)
        self._warm_up(function, inputs)
        torch.cuda.empty_cache()  # a capture begins with it, and it must not count as freed by that
        free = self._free_bytes()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = function(list(inputs))
        except RuntimeError as error:
            raise CaptureError(
                f"`{name}` cannot be captured: {error}\nA graph holds no work of the host: leave "
                "such an op out by splitting at it (PIECEWISE), or capture nothing (NONE)."
            ) from error
        self._num_bytes += max(0, free - self._free_bytes())
        graph.replay()
        return CudaGraph(graph, static, [_lend(each) for each in outputs]), outputs

    def _warm_up(self, function: CompiledPiece, inputs: Sequence[Any]) -> None:
        """Let libraries and kernels set themselves up, which they cannot while being recorded."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(self._num_warmups):
                function(list(inputs))
        current.wait_stream(self._stream)

    def _free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._stream.device)
        return free


class CudaGraph:
    """A recorded graph; its outputs are views of memory that the runner's pool owns."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, inputs: StaticInputs, outputs: Sequence[Any]
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._outputs = outputs
        self._num_replays = 0

    @property
    def num_replays(self) -> int:
        """How often it was replayed."""
        return self._num_replays

    def replay(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Check the inputs and launch the graph on the current stream."""
        self._inputs.check(inputs)
        self._graph.replay()
        self._num_replays += 1
        return self._outputs


class _Memory:
    """Bytes at an address, in the form that `torch.as_tensor` takes without copying or owning."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _lend(value: Any) -> Any:
    """The same tensor without a claim to its memory: the pool of a live graph keeps that."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    storage = value.untyped_storage()
    # A tensor of inference mode could not be written outside of it.
    with torch.inference_mode(False):
        memory = torch.as_tensor(_Memory(storage.data_ptr(), storage.nbytes()), device=value.device)
        typed = memory.view(value.dtype)
        return typed.as_strided(value.shape, value.stride(), value.storage_offset())
