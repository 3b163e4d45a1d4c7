"""Finds a choice for each kind of call that a model makes, and puts all of them in force at once.

Nothing is timed but by `autotune`, which its caller calls before the first request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ir_core.autotuning.choice_file import ChoiceFile, Loaded, StoredChoice
from ir_core.autotuning.contest import Clock
from ir_core.autotuning.grounds import (
    Grounds,
    Ungrounded,
    changed_file,
    difference,
    facts_of,
    find_grounds,
)
from ir_core.autotuning.recorder import CallRecorder, RecordedCalls
from ir_core.autotuning.table import TunedChoice
from ir_core.autotuning.tuner import tune
from ir_core.errors import IrError
from ir_core.priority_lists import USER

if TYPE_CHECKING:
    from ir_core.op import IrOp
    from ir_core.registry import Registry

Step = Callable[[int], object]
"""Runs the model eagerly on so many tokens."""


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """How to tune.

    Attributes:
        weights: how much each number of tokens counts; not empty.
        is_fused: the model is compiled by a compiler that fuses ops.
        is_timed: time what is not known yet; otherwise nothing is timed.
        is_stored: write down what was timed.
    """

    weights: Mapping[int, float]
    is_fused: bool
    is_timed: bool
    is_stored: bool = True


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What came of it.

    Attributes:
        choices: those of this model's calls.
        num_timed: of them, how many were timed just now.
        remarks: what was not tuned, not known or not stored, each with its reason.
        seconds: what it took.
    """

    choices: tuple[TunedChoice, ...]
    num_timed: int
    remarks: tuple[str, ...]
    seconds: float

    @property
    def changed(self) -> tuple[TunedChoice, ...]:
        """The choices that are not the priority's."""
        return tuple(each for each in self.choices if each.is_changed)


def autotune(
    registry: Registry,
    step: Step,
    plan: TuningPlan,
    file: ChoiceFile | None = None,
    *,
    clock: Clock = time.perf_counter,
) -> TuningReport:
    """Tune all calls that a step of a model makes, and put the choices in force process-wide.

    Calls that have a choice already keep it. An op for which the user gave a priority is left out.
    """
    started = time.monotonic()
    smallest = min(plan.weights)
    calls = _record(registry, step, smallest)
    session = _Session(registry, plan, file.load() if file else Loaded(()), clock)
    missing = [each for key, each in calls.items() if not session.restore(key, each.op)]
    if missing and plan.is_timed:
        recorded = {smallest: calls}
        for count in plan.weights:
            if count not in recorded:
                recorded[count] = _record(registry, step, count)
        for each in missing:
            session.time(each, recorded)
        if file is not None and plan.is_stored:
            session.store(file)
    registry.priorities.adopt_tuned(session.choices.values())
    return TuningReport(
        tuple(session.choices.values()),
        session.num_timed,
        tuple(dict.fromkeys(session.remarks)),
        time.monotonic() - started,
    )


_Key = tuple[str, str]
_Calls = Mapping[_Key, RecordedCalls]


def _record(registry: Registry, step: Step, count: int) -> _Calls:
    with CallRecorder(registry) as recorder:
        step(count)
    return recorder.calls


class _Session:
    """What one `autotune` has found so far."""

    def __init__(self, registry: Registry, plan: TuningPlan, loaded: Loaded, clock: Clock) -> None:
        self._registry = registry
        self._plan = plan
        self._clock = clock
        self._grounds: dict[str, Grounds | Ungrounded] = {}
        self._stored = {(each.choice.op, each.choice.signature): each for each in loaded.choices}
        self.choices: dict[_Key, TunedChoice] = {}
        self.num_timed = 0
        self.remarks: list[str] = [] if loaded.reason is None else [loaded.reason]
        self._timed: list[StoredChoice] = []

    def restore(self, key: _Key, op: IrOp) -> bool:
        """Take a choice that is known, if it holds; whether nothing is left to be done for it."""
        entries = self._registry.priorities.resolve(op).entries
        if any(each.source == USER for each in entries):
            self.remarks.append(f"{op.name}: not tuned, since a priority is given for it")
            return True
        known = self._registry.priorities.tuned.get(key)
        if known is None:
            known = self._restored(key, op)
        if known is None:
            return False
        self.choices[key] = known
        return True

    def time(self, first: RecordedCalls, recorded: Mapping[int, _Calls]) -> None:
        """Choose by timing, if the call is made for every number of tokens."""
        key, op = (first.op.name, first.signature), first.op
        calls = {count: each[key] for count, each in recorded.items() if key in each}
        weights = {count: self._plan.weights[count] for count in calls}
        try:
            choice = tune(calls, weights, is_fused=self._plan.is_fused, clock=self._clock)
        except IrError as error:
            self.remarks.append(f"{op.name}: not tuned: {error}")
            return
        self.choices[key] = choice
        self.num_timed += bool(choice.timings)
        grounds = self._grounds_of(op)
        if isinstance(grounds, Ungrounded):
            self.remarks.append(f"{op.name}: tuned anew at each start: {grounds.reason}")
        else:
            self._timed.append(StoredChoice(choice, grounds))

    def store(self, file: ChoiceFile) -> None:
        """Write down what was timed."""
        try:
            file.save(self._timed)
        except OSError as error:
            self.remarks.append(f"what was timed cannot be stored: {error}")

    def _restored(self, key: _Key, op: IrOp) -> TunedChoice | None:
        found, plan = self._stored.get(key), self._plan
        if found is None:
            if not self._plan.is_timed:
                self.remarks.append(f"{op.name}: no choice is stored for {key[1]}")
            return None
        facts = facts_of(op, plan.weights, is_fused=plan.is_fused)
        changed = difference(facts, found.grounds.facts) or changed_file(op, found.grounds.files)
        if changed is not None:
            self.remarks.append(f"{op.name}: the stored choice is not used: {changed}")
            return None
        return found.choice

    def _grounds_of(self, op: IrOp) -> Grounds | Ungrounded:
        if op.name not in self._grounds:
            plan = self._plan
            found = find_grounds(op, plan.weights, is_fused=plan.is_fused)
            self._grounds[op.name] = found
        return self._grounds[op.name]
