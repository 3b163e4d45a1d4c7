"""The recorded calls of one provider as functions to be timed, as written or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ir_core.autotuning.call_compiler import tensors_of
from ir_core.autotuning.contest import Clock, Contest, Run
from ir_core.autotuning.recorder import RecordedCalls, copy_of

if TYPE_CHECKING:
    from ir_core.implementation import Implementation


@dataclass(frozen=True, slots=True)
class RunnableCalls:
    """What runs a call by number of tokens, and the activations whose memory it may spoil.

    `is_compiled` code takes a list of the tensors only.
    """

    calls: Mapping[int, Callable[..., object]]
    spoiled: frozenset[str]
    is_compiled: bool = False


def written(implementation: Implementation, counts: Iterable[int]) -> RunnableCalls:
    """The implementation itself, as eager mode runs it."""
    spoiled = implementation.op.activations if implementation.inplace else ()
    return RunnableCalls(dict.fromkeys(counts, implementation.fn), frozenset(spoiled))


def contest_of(
    functions: Mapping[str, RunnableCalls], calls: Mapping[int, RecordedCalls], clock: Clock
) -> Contest:
    """A contest of providers on recorded calls; they spoil copies of their own only."""
    runs = {
        name: {count: _run_all(function, count, each) for count, each in calls.items()}
        for name, function in functions.items()
    }
    return Contest(runs, {count: len(each.samples) for count, each in calls.items()}, clock)


def _run_all(function: RunnableCalls, count: int, calls: RecordedCalls) -> Run:
    """A function that runs all samples and waits for them; it may spoil copies of its own only."""
    names, call = calls.op.schema.names, function.calls[count]
    spoiled = {
        name: copy_of(value)
        for name, value in zip(names, calls.samples[0], strict=True)
        if name in function.spoiled and isinstance(value, Tensor)
    }
    samples: list[Sequence[Any]] = [
        tuple(spoiled.get(name, value) for name, value in zip(names, each, strict=True))
        for each in calls.samples
    ]
    synchronize = _synchronizer(samples[0])
    if function.is_compiled:
        samples = [(tensors_of(each),) for each in samples]

    def run() -> None:
        for values in samples:
            call(*values)
        synchronize()

    return run


def _synchronizer(values: Sequence[Any]) -> Run:
    tensors = (each for each in values if isinstance(each, Tensor))
    if any(each.device.type != "cpu" for each in tensors):
        return torch.accelerator.synchronize
    return _nothing


def _nothing() -> None:
    """A CPU has done its work when a call returns."""
