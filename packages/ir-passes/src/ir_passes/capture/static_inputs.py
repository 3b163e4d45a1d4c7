"""Owns what the inputs of a captured graph were, so that a replay on any others is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ir_passes.errors import CaptureError

_FACTS = ("address", "shape", "strides", "dtype")


class StaticInputs:
    """Where each input of one graph lay, or which number it was; keeps no tensor alive."""

    def __init__(self, owner: str, names: Sequence[str], values: Sequence[Any]) -> None:
        self._owner = owner
        self._names = tuple(names)
        self._captured = [_facts_of(value) for value in values]

    def check(self, values: Sequence[Any]) -> None:
        """Compare with the inputs of a replay.

        Raises:
            CaptureError: some are not what they were; names each and what changed.
        """
        given = [_facts_of(value) for value in values]
        if given != self._captured:
            raise CaptureError(
                f"`{self._owner}` was captured with other inputs: {self._changes(given)}. A graph "
                "reads fixed memory: leave its inputs where they are, or capture it again."
            )

    def _changes(self, given: Sequence[Any]) -> str:
        rows = zip(self._names, self._captured, given, strict=True)
        return "; ".join(
            f"`{name}` has {_change(before, now)}" for name, before, now in rows if before != now
        )


def _facts_of(value: Any) -> Any:
    # Plain tuples: a model has hundreds of tensors, and each step looks at all of them.
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value


def _change(before: Any, now: Any) -> str:
    if not isinstance(before, tuple) or not isinstance(now, tuple):
        return f"value {now!r}, not {before!r}"
    rows = zip(_FACTS, before, now, strict=True)
    return ", ".join(
        f"{fact} {_spell(new)}, not {_spell(old)}" for fact, old, new in rows if old != new
    )


def _spell(fact: Any) -> str:
    return str(tuple(fact)) if isinstance(fact, tuple) else str(fact)
