"""Refuses calls whose donated arguments share memory with others: the trace could not see that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ir_core import DonationError

Flat = Callable[..., Sequence[Any]]


def refuse_sharing(function: Flat, donated: Sequence[int], state: Sequence[Any]) -> Flat:
    """A function that checks its inputs before it runs.

    Args:
        function: takes the graph's inputs that are no state.
        donated: positions of those that it may overwrite.
        state: the model's own tensors.

    The result raises DonationError where the storage of a donated input is another input's or the
    model's. Views of one storage count as sharing, whether or not they overlap.
    """
    owned = {storage for each in state if (storage := _storage(each)) is not None}

    def checked(*inputs: Any) -> Sequence[Any]:
        storages = [_storage(each) for each in inputs]
        for place in donated:
            if storages[place] in owned or storages.count(storages[place]) > 1:
                raise DonationError(
                    f"Input {place} is donated, but shares memory with another input or with the "
                    "model; clone it first."
                )
        return function(*inputs)

    return checked


def _storage(value: Any) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None
