"""Steps of a model as kernels that run again without Python: a captured graph for a CPU.

Owns the recording, and the refusal of whatever a tape would leave out. When a tape may be replayed
is its user's business: it computes on the memory that it was recorded with.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ir_core.torch_binding import kernel_of
from ir_kernels.library import availability, kernels

_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


class TapeError(Exception):
    """What was to be recorded cannot be: the message says which op, and why."""


class Tape:
    """What ops of this library are to do for up to `num_tokens` tokens, each of its own request.

    A replay runs their kernels on the first rows of the memory that they were recorded with.
    """

    def __init__(self, num_tokens: int) -> None:
        is_there, reason = availability()
        if not is_there:
            raise TapeError(reason)
        self.num_tokens = num_tokens
        self._number: int = kernels.tape_begin.default(num_tokens)
        self._forget = weakref.finalize(self, kernels.tape_drop.default, self._number)

    @classmethod
    def record(cls, num_tokens: int, call: Callable[[], Any]) -> tuple[Self, Any]:
        """Keep what `call` computes on `num_tokens` tokens, without computing it.

        Returns:
            The tape, and what the call returned: a replay writes its results there.

        Raises:
            TapeError: something was computed that no tape holds.
        """
        tape = cls(num_tokens)
        try:
            with _Witness(tape):
                result = call()
            kernels.tape_end.default(tape._number)
        except BaseException:
            tape.close()
            raise
        return tape, result

    @property
    def num_steps(self) -> int:
        """Kernels that a replay runs."""
        return kernels.tape_steps.default(self._number)

    @property
    def refusal(self) -> str:
        """Why the tape is of no use; "" if it is."""
        return kernels.tape_refusal.default(self._number)

    @property
    def num_bytes(self) -> int:
        """Memory that lies between the kernels."""
        return kernels.tape_bytes.default(self._number)

    def replay(self, num_tokens: int, num_requests: int) -> None:
        """Run the kernels on the first `num_tokens` rows, at most as many as were recorded.

        Raises:
            RuntimeError: more than was recorded, a closed tape, or what an op would raise: a token
                id beyond the vocabulary, for example.
        """
        if not self._forget.alive:
            raise RuntimeError("the tape is closed")
        kernels.tape_replay.default(self._number, num_tokens, num_requests)

    def poison(self) -> None:
        """Make everything that a replay has to compute NaN, the results too."""
        kernels.tape_poison.default(self._number)

    def close(self) -> None:
        """Forget the steps; whoever forgets the tape does so too."""
        self._forget()


class _Witness(TorchDispatchMode):
    """Sees every op of a recording, and refuses those that leave no step on the tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is traced under the mode; with True, torch's compiler is imported to say so."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the op, which must be on the tape afterwards, unless it computes nothing."""
        if kernel := kernel_of(func):
            with self:  # what its implementation calls must be seen as well
                return kernel(*args, **(kwargs or {}))
        before = self._tape.num_steps
        result = func(*args, **(kwargs or {}))
        if refusal := self._tape.refusal:
            raise TapeError(f"`{func}` cannot be recorded: {refusal}")
        if self._tape.num_steps == before and not _computes_nothing(func):
            raise TapeError(f"`{func}` computes what no tape holds")
        return result


def _computes_nothing(func: Any) -> bool:
    return func.is_view or func in _ALLOCATIONS
