"""Finds a choice for each kind of call that a model makes, and puts all of them in force at once.

Nothing is timed but by `autotune`, which its caller calls before the first request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ir_core.autotuning.choice_file import ChoiceFile
from ir_core.autotuning.contest import Clock
from ir_core.autotuning.plan import TuningPlan, TuningReport
from ir_core.autotuning.session import Step, TuningSession

if TYPE_CHECKING:
    from ir_core.registry import Registry


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
    return run_session(TuningSession(registry, step, plan, file, clock=clock))


def run_session(session: TuningSession) -> TuningReport:
    """Take all steps of a session in one process."""
    session.look()
    if session.num_missing:
        session.record()
        session.time()
    return session.adopt()
