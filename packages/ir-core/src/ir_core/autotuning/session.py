"""The tuning of one model step by step, so that ranks can take each step together.

A session says what is known, what must be timed, and what came of it; it decides on no step itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ir_core.autotuning.choice_file import ChoiceFile, StoredChoice
from ir_core.autotuning.contest import Clock
from ir_core.autotuning.grounds import (
    Grounds,
    Ungrounded,
    changed_file,
    difference,
    facts_of,
    find_grounds,
)
from ir_core.autotuning.plan import Findings, TuningPlan, TuningReport
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

_Key = tuple[str, str]


class TuningSession:
    """`look`, then `record` and `time` if something is missing, then `adopt`.

    `look` and `record` run the model: on several ranks all must be in them at once.
    """

    def __init__(
        self,
        registry: Registry,
        step: Step,
        plan: TuningPlan,
        file: ChoiceFile | None = None,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._registry = registry
        self._step = step
        self._plan = plan
        self._file = file
        self._clock = clock
        self._started = time.monotonic()
        self._compiler = None if plan.compiler is None else plan.compiler.description
        self._smallest = min(plan.weights)
        self._calls: dict[int, Mapping[_Key, RecordedCalls]] = {}
        self._grounds: dict[str, Grounds | Ungrounded] = {}
        self._choices: dict[_Key, TunedChoice] = {}
        self._missing: list[RecordedCalls] = []
        self._num_timed = 0
        self._remarks: list[str] = []
        self._stored: dict[_Key, StoredChoice] = {}

    @property
    def calls(self) -> Sequence[_Key]:
        """Op and signature of each kind of call that the model makes."""
        return tuple(self._calls[self._smallest])

    @property
    def findings(self) -> Findings:
        """What is known so far."""
        return Findings(tuple(self._choices.values()), tuple(self._stored.values()))

    @property
    def num_missing(self) -> int:
        """For how many kinds of calls nothing is known that could be timed."""
        return len(self._missing) if self._plan.is_timed else 0

    def look(self) -> None:
        """Run the smallest step, and take what is known of its calls."""
        self._record(self._smallest)
        loaded: dict[_Key, StoredChoice] = {}
        if self._file is not None:
            found = self._file.load()
            loaded = {(each.choice.op, each.choice.signature): each for each in found.choices}
            self._remarks += [] if found.reason is None else [found.reason]
        for key, each in self._calls[self._smallest].items():
            if not self._restore(key, each.op, loaded.get(key)):
                self._missing.append(each)

    def record(self) -> None:
        """Run the steps of the other numbers of tokens, which timing needs."""
        for count in self._plan.weights:
            if count not in self._calls:
                self._record(count)

    def time(self) -> None:
        """Time what is missing, and write it down if that is to be."""
        timed = [each for each in map(self._time, self._missing) if each is not None]
        self._missing = []
        if timed:
            self._store(timed)

    def take(self, findings: Findings, *, is_stored: bool) -> None:
        """Have what another process with such a machine found in place of this one's findings.

        Args:
            findings: of a session for a model with the same calls.
            is_stored: write it down, if the plan has that too.
        """
        self._missing = []
        self._choices = {(each.op, each.signature): each for each in findings.choices}
        if is_stored:
            self._store(findings.stored)

    def adopt(self) -> TuningReport:
        """Put what is known in force, process-wide; says what came of all."""
        self._registry.priorities.adopt_tuned(self._choices.values())
        self._calls = {self._smallest: self._calls[self._smallest]}
        return TuningReport(
            tuple(self._choices.values()),
            self._num_timed,
            tuple(dict.fromkeys(self._remarks)),
            time.monotonic() - self._started,
        )

    def _store(self, choices: Sequence[StoredChoice]) -> None:
        """Write choices down, if that is to be; where it cannot be done, a remark says so."""
        if self._file is None or not self._plan.is_stored:
            return
        try:
            self._file.save(choices)
        except OSError as error:
            self._remarks.append(f"what was timed cannot be stored: {error}")

    def _record(self, count: int) -> None:
        with CallRecorder(self._registry) as recorder:
            self._step(count)
        self._calls[count] = recorder.calls
        left_out = recorder.left_out.items()
        self._remarks += [f"{name}: not tuned: {reason}" for name, reason in left_out]

    def _restore(self, key: _Key, op: IrOp, stored: StoredChoice | None) -> bool:
        """Take a choice that is known, if it holds; whether nothing is left to be done for it."""
        entries = self._registry.priorities.resolve(op).entries
        if any(each.source == USER for each in entries):
            self._remarks.append(f"{op.name}: not tuned, since a priority is given for it")
            return True
        known = self._registry.priorities.tuned.get(key)
        if known is None:
            held = self._held(key, op, stored)
            if held is None:
                return False
            self._stored[key], known = held, held.choice
        self._choices[key] = known
        return True

    def _held(self, key: _Key, op: IrOp, stored: StoredChoice | None) -> StoredChoice | None:
        """The stored choice, if all that it rests on is as it was."""
        if stored is None:
            if not self._plan.is_timed:
                self._remarks.append(f"{op.name}: no choice is stored for {key[1]}")
            return None
        changed = difference(self._facts_of(op), stored.grounds.facts)
        changed = changed or changed_file(op, stored.grounds.files)
        if changed is not None:
            self._remarks.append(f"{op.name}: the stored choice is not used: {changed}")
            return None
        return stored

    def _time(self, first: RecordedCalls) -> StoredChoice | None:
        """Choose by timing, if the call is made for every number of tokens; what to store of it."""
        key, op = (first.op.name, first.signature), first.op
        calls = {count: each[key] for count, each in self._calls.items() if key in each}
        weights = {count: self._plan.weights[count] for count in calls}
        try:
            choice = tune(
                calls,
                weights,
                is_fused=self._plan.is_fused,
                compiler=self._plan.compiler,
                blocked=self._plan.blocked,
                clock=self._clock,
            )
        except IrError as error:
            self._remarks.append(f"{op.name}: not tuned: {error}")
            return None
        self._choices[key] = choice
        self._num_timed += bool(choice.timings)
        grounds = self._grounds_of(op)
        if isinstance(grounds, Ungrounded):
            self._remarks.append(f"{op.name}: tuned anew at each start: {grounds.reason}")
            return None
        self._stored[key] = StoredChoice(choice, grounds)
        return self._stored[key]

    def _grounds_of(self, op: IrOp) -> Grounds | Ungrounded:
        if op.name not in self._grounds:
            self._grounds[op.name] = find_grounds(op, self._facts_of(op))
        return self._grounds[op.name]

    def _facts_of(self, op: IrOp) -> Mapping[str, str]:
        plan, compiler = self._plan, self._compiler
        return facts_of(
            op, plan.weights, is_fused=plan.is_fused, compiler=compiler, blocked=plan.blocked
        )
