"""Times the implementations that may run a call, and says which of them it gets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch

from ir_core.autotuning.agreement import disagreement
from ir_core.autotuning.call_compiler import CallCompiler
from ir_core.autotuning.candidates import Candidates, find_candidates
from ir_core.autotuning.contest import Clock
from ir_core.autotuning.decision import Round, Verdict, decide_by_range
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.recorder import RecordedCalls
from ir_core.autotuning.rows import rows_place
from ir_core.autotuning.runnable_calls import RunnableCalls, contest_of, written
from ir_core.autotuning.table import Timing, TunedChoice
from ir_core.errors import TuningTimeError
from ir_core.selection import Rejection

_NO_ROWS = "rows of such calls are not the tokens of a step"


def tune(
    calls: Mapping[int, RecordedCalls],
    weights: Mapping[int, float],
    *,
    is_fused: bool,
    compiler: CallCompiler | None = None,
    blocked: Mapping[int, str] = MappingProxyType({}),
    clock: Clock = time.perf_counter,
) -> TunedChoice:
    """Choose for calls of one signature; who is faster must also agree with native on them.

    Another provider may win from some number of rows on, if rows are what the numbers of tokens
    count in all of the calls.

    An implementation that raises is out, with the error as the reason; if it is the default, the
    default stays, and a request would meet the error as without tuning.

    Args:
        calls: the same calls by number of tokens.
        weights: how much each number of tokens counts.
        is_fused: the model is compiled by a compiler that fuses ops.
        compiler: compiles all candidates if one of them would be fused; without it, that one is
            not timed.
        blocked: the numbers of tokens with which no range of rows may end, each with the reason.
        clock: seconds.

    Raises:
        NoImplementationError, PredicateError: nothing can run such calls.
        TuningTimeError: the compiler has no time left.
    """
    first = next(iter(calls.values()))
    can_compile = compiler is not None
    found = find_candidates(first.op, first.samples[0], is_fused=is_fused, can_compile=can_compile)
    timed = _time(found, calls, compiler, clock)
    decided = _Decided((Verdict(tuple(weights), found.default),))
    if timed.rounds:
        decided = _decide(timed.rounds, weights, calls, _blocked(calls, blocked))
    first_range = decided.verdicts[0]
    dropped = (Rejection(*each) for each in timed.dropped.items())
    return TunedChoice(
        op=first.op.name,
        signature=first.signature,
        default=found.default,
        provider=first_range.provider,
        timings=_medians(timed.rounds),
        rejections=(*found.rejections, *dropped, *decided.wrong),
        as_written=_medians(timed.as_written),
        later=_later(decided.verdicts),
        remark=decided.remark,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """The rounds that decide, eager ones beside those of compiled code, and who dropped out."""

    rounds: Sequence[Round] = ()
    as_written: Sequence[Round] = ()
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])


def _time(
    found: Candidates,
    calls: Mapping[int, RecordedCalls],
    compiler: CallCompiler | None,
    clock: Clock,
) -> _Timed:
    if len(found.providers) < 2:
        return _Timed()
    op = next(iter(calls.values())).op
    eager = {name: written(op.implementations[name], calls) for name in found.providers}
    if compiler is None or not found.is_compiled:
        rounds, dropped = _compete(eager, calls, found.default, clock)
        return _Timed(rounds, (), dropped)
    compiled, dropped = _compiled(found.providers, calls, compiler)
    rounds, slow = _compete(compiled, calls, found.default, clock)
    known = list(rounds[0]) if rounds else []
    shown = _show({name: eager[name] for name in known}, calls, clock) if known else ()
    return _Timed(rounds, shown, {**dropped, **slow})


@dataclass(frozen=True, slots=True)
class _Decided:
    """The winner of each range, those that only won, and why there are no more ranges."""

    verdicts: tuple[Verdict, ...]
    wrong: tuple[Rejection, ...] = ()
    remark: str = ""


def _decide(
    rounds: Sequence[Round],
    weights: Mapping[int, float],
    calls: Mapping[int, RecordedCalls],
    blocked: Mapping[int, str],
) -> _Decided:
    """The first that win and agree with native on all calls; the default is free."""
    order, free = list(rounds[0]), [each for each in weights if each not in blocked]
    wrong: list[Rejection] = []
    while True:
        verdicts = decide_by_range(order, rounds, weights, free)
        winners = dict.fromkeys(each.provider for each in verdicts if each.provider != order[0])
        problems = [_problem(name, calls) for name in winners]
        found = [each for each in problems if each is not None]
        if not found:
            unbound = decide_by_range(order, rounds, weights, list(weights))
            return _Decided(verdicts, tuple(wrong), _remark(unbound, blocked))
        wrong += found
        order = [name for name in order if name not in {each.provider for each in found}]


def _problem(name: str, calls: Mapping[int, RecordedCalls]) -> Rejection | None:
    """How a provider's results differ from native's on some of the calls; None if they agree."""
    implementation = next(iter(calls.values())).op.implementations[name]
    problems = (disagreement(implementation, each.samples[0]) for each in calls.values())
    problem = next(filter(None, problems), None)
    return None if problem is None else Rejection(name, problem)


def _blocked(calls: Mapping[int, RecordedCalls], blocked: Mapping[int, str]) -> Mapping[int, str]:
    """The numbers of tokens with which no range may end: all, where rows are something else."""
    op = next(iter(calls.values())).op
    if rows_place(op) is None or any(each.sizes != {count} for count, each in calls.items()):
        return dict.fromkeys(calls, _NO_ROWS)
    return blocked


def _remark(unbound: Sequence[Verdict], blocked: Mapping[int, str]) -> str:
    """Why a range does not end where times speak for it; "" if all do."""
    ends = [each.counts[-1] for each in unbound[:-1]]
    reasons = dict.fromkeys(blocked[each] for each in ends if each in blocked)
    return "; ".join(f"one provider for several sizes: {each}" for each in reasons)


def _later(verdicts: Sequence[Verdict]) -> tuple[LaterRange, ...]:
    return tuple(
        LaterRange(before.counts[-1] + 1, after.provider) for before, after in pairwise(verdicts)
    )


def _compiled(
    names: Sequence[str], calls: Mapping[int, RecordedCalls], compiler: CallCompiler
) -> tuple[dict[str, RunnableCalls], dict[str, str]]:
    """The functions of those that could be compiled, and why the others could not."""
    functions: dict[str, RunnableCalls] = {}
    dropped: dict[str, str] = {}
    op = next(iter(calls.values())).op
    spoiled = frozenset(op.activations if op.allow_inplace else ())
    examples = {count: each.samples[0] for count, each in calls.items()}
    for name in names:
        try:
            compiled = compiler.compile(op.implementations[name], examples)
        except TuningTimeError:
            raise
        except Exception as error:
            dropped[name] = f"is not compiled to be timed: {type(error).__name__}: {error}"
        else:
            functions[name] = RunnableCalls(compiled, spoiled, is_compiled=True)
    return functions, dropped


def _compete(
    functions: Mapping[str, RunnableCalls],
    calls: Mapping[int, RecordedCalls],
    default: str,
    clock: Clock,
) -> tuple[Sequence[Round], Mapping[str, str]]:
    """All rounds, and who dropped out; no round where there is no other than the default."""
    if len(functions) < 2 or default not in functions:
        return [], {}
    contest = contest_of(functions, calls, clock)
    with torch.inference_mode():
        return contest.rounds(), contest.dropped


def _show(
    functions: Mapping[str, RunnableCalls], calls: Mapping[int, RecordedCalls], clock: Clock
) -> Sequence[Round]:
    with torch.inference_mode():
        return contest_of(functions, calls, clock).look()


def _medians(rounds: Sequence[Round]) -> tuple[Timing, ...]:
    return tuple(_median(name, rounds) for name in rounds[0]) if rounds else ()


def _median(name: str, rounds: Sequence[Round]) -> Timing:
    counts: Any = rounds[0][name]
    return Timing(
        name,
        {
            count: round(statistics.median(each[name][count] for each in rounds) * 1e6, 3)
            for count in counts
        },
    )
