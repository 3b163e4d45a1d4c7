"""Times the implementations that may run a call, and says which of them it gets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ir_core.autotuning.agreement import disagreement
from ir_core.autotuning.candidates import Candidates, find_candidates
from ir_core.autotuning.contest import Clock, Contest, Run
from ir_core.autotuning.decision import Round, decide
from ir_core.autotuning.recorder import RecordedCalls, Values, copy_of
from ir_core.autotuning.table import Timing, TunedChoice
from ir_core.implementation import Implementation
from ir_core.selection import Rejection


def tune(
    calls: Mapping[int, RecordedCalls],
    weights: Mapping[int, float],
    *,
    is_fused: bool,
    clock: Clock = time.perf_counter,
) -> TunedChoice:
    """Choose for calls of one signature; who is faster must also agree with native on them.

    An implementation that raises is out, with the error as the reason; if it is the default, the
    default stays, and a request would meet the error as without tuning.

    Args:
        calls: the same calls by number of tokens.
        weights: how much each number of tokens counts.
        is_fused: the model is compiled by a compiler that fuses ops.
        clock: seconds.

    Raises:
        NoImplementationError, PredicateError: nothing can run such calls.
    """
    first = next(iter(calls.values()))
    found = find_candidates(first.op, first.samples[0], is_fused=is_fused)
    rounds, dropped = _compete(calls, found, clock)
    rejections = [*found.rejections, *(Rejection(*each) for each in dropped.items())]
    timed = [name for name in found.providers if rounds and name in rounds[0]]
    winner, wrong = _decide(timed, rounds, weights, calls) if timed else (found.default, [])
    return TunedChoice(
        op=first.op.name,
        signature=first.signature,
        default=found.default,
        provider=winner,
        timings=tuple(_median(name, rounds) for name in timed),
        rejections=(*rejections, *wrong),
    )


def _decide(
    order: Sequence[str],
    rounds: Sequence[Round],
    weights: Mapping[int, float],
    calls: Mapping[int, RecordedCalls],
) -> tuple[str, list[Rejection]]:
    """The first that wins and agrees with native, and those that only won; the default is free."""
    op = next(iter(calls.values())).op
    wrong: list[Rejection] = []
    while True:
        winner = decide(order, rounds, weights)
        if winner == order[0]:
            return winner, wrong
        implementation = op.implementations[winner]
        problems = (disagreement(implementation, each.samples[0]) for each in calls.values())
        problem = next(filter(None, problems), None)
        if problem is None:
            return winner, wrong
        wrong.append(Rejection(winner, problem))
        order = [name for name in order if name != winner]


def _compete(
    calls: Mapping[int, RecordedCalls], found: Candidates, clock: Clock
) -> tuple[Sequence[Round], Mapping[str, str]]:
    if len(found.providers) < 2:
        return [], {}
    op = next(iter(calls.values())).op
    functions = {
        name: {count: _run_all(op.implementations[name], each) for count, each in calls.items()}
        for name in found.providers
    }
    contest = Contest(functions, {count: len(each.samples) for count, each in calls.items()}, clock)
    with torch.inference_mode():
        return contest.rounds(), contest.dropped


def _run_all(implementation: Implementation, calls: RecordedCalls) -> Run:
    """A function that runs all samples and waits for them; it may spoil copies of its own only."""
    names, op, fn = calls.op.schema.names, calls.op, implementation.fn
    spoiled = {
        name: copy_of(value)
        for name, value in zip(names, calls.samples[0], strict=True)
        if implementation.inplace and name in op.activations and isinstance(value, Tensor)
    }
    samples = [
        tuple(spoiled.get(name, value) for name, value in zip(names, each, strict=True))
        for each in calls.samples
    ]
    synchronize = _synchronizer(samples[0])

    def run() -> None:
        for values in samples:
            fn(*values)
        synchronize()

    return run


def _synchronizer(values: Values) -> Run:
    tensors = (each for each in values if isinstance(each, Tensor))
    if any(each.device.type != "cpu" for each in tensors):
        return torch.accelerator.synchronize
    return _nothing


def _nothing() -> None:
    """A CPU has done its work when a call returns."""


def _median(name: str, rounds: Sequence[Round]) -> Timing:
    counts: Any = rounds[0][name]
    return Timing(
        name,
        {
            count: round(statistics.median(each[name][count] for each in rounds) * 1e6, 3)
            for count in counts
        },
    )
