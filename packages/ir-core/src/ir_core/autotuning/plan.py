"""What is asked of a tuning, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir_core.autotuning.call_compiler import CallCompiler
from ir_core.autotuning.choice_file import StoredChoice
from ir_core.autotuning.table import TunedChoice


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """How to tune.

    Attributes:
        weights: how much each number of tokens counts; not empty.
        is_fused: the model is compiled by a compiler that fuses ops.
        is_timed: time what is not known yet; otherwise nothing is timed.
        is_stored: write down what was timed.
        compiler: compiles what the model's compiler fuses, so that it can be timed; without one it
            is not timed.
        blocked: numbers of tokens of `weights` that no range of rows may end with, each with the
            reason; after all others but the greatest another provider may be chosen.
    """

    weights: Mapping[int, float]
    is_fused: bool
    is_timed: bool
    is_stored: bool = True
    compiler: CallCompiler | None = None
    blocked: Mapping[int, str] = field(default_factory=dict[int, str])


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


@dataclass(frozen=True, slots=True)
class Findings:
    """What a process knows of a model's calls.

    Attributes:
        choices: all of them.
        stored: those that can be told from an outdated choice, with what they rest on.
    """

    choices: tuple[TunedChoice, ...]
    stored: tuple[StoredChoice, ...]
