"""Owns buffers that hold a function's outputs at addresses that stay. Runs no function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ir_passes.errors import CaptureError

TakeMemory = Callable[[int, int, torch.device], Tensor]
"""Gives bytes, [n] uint8: takes the position of an output, n and a device."""

_OF_AN_INPUT = -1


class _Layout(NamedTuple):
    """How an output lies: `home` is the first output in the same memory, or that of an input."""

    home: int
    num_bytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class StaticOutputs:
    """Twins of a function's outputs, into which those of every run are copied.

    Outputs that share memory have twins that share memory. An output in the memory of an input has
    no twin: it stays where it is as the input does.

    Attributes:
        values: the twins; numbers and None as they are.
    """

    def __init__(
        self, owner: str, outputs: Sequence[Any], inputs: Sequence[Any], take: TakeMemory
    ) -> None:
        self._owner = owner
        self._layouts = _layouts(outputs, inputs)
        self._memory: dict[int, Tensor] = {}
        self.values = [
            each if _stays(layout) else self._twin(index, each, layout, take)
            for index, (each, layout) in enumerate(zip(outputs, self._layouts, strict=True))
        ]
        self._copy(outputs)

    def store(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Copy the outputs of another run.

        Raises:
            CaptureError: they do not lie as those of the first run did.
        """
        if _layouts(outputs, inputs) != self._layouts:
            raise CaptureError(
                f"`{self._owner}` returned outputs of other sizes than when it was captured: it "
                "depends on more than its inputs, and cannot be captured."
            )
        self._copy(outputs)

    def _twin(self, index: int, output: Tensor, layout: _Layout, take: TakeMemory) -> Tensor:
        if layout.home == index:
            self._memory[index] = take(index, layout.num_bytes, output.device)
        storage = self._memory[layout.home].untyped_storage()
        # A tensor of inference mode could not be written outside of it.
        with torch.inference_mode(False):
            twin = torch.empty(0, dtype=output.dtype, device=output.device)
            return twin.set_(storage, layout.offset, layout.shape, layout.strides)

    def _copy(self, outputs: Sequence[Any]) -> None:
        for index, memory in self._memory.items():
            memory.copy_(_bytes_of(outputs[index]))


def _layouts(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    homes = {_memory_of(each): _OF_AN_INPUT for each in inputs if isinstance(each, Tensor)}
    layouts: list[Any] = []
    for index, each in enumerate(outputs):
        if not isinstance(each, Tensor):
            layouts.append(each)
            continue
        home = homes.setdefault(_memory_of(each) or -2 - index, index)
        num_bytes = each.untyped_storage().nbytes()
        offset = int(each.storage_offset())
        layouts.append(
            _Layout(home, num_bytes, offset, tuple(each.shape), each.stride(), each.dtype)
        )
    return layouts


def _stays(layout: Any) -> bool:
    return not isinstance(layout, _Layout) or layout.home == _OF_AN_INPUT


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes_of(tensor: Tensor) -> Tensor:
    """The whole memory that a tensor lies in, [n] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
