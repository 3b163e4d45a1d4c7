"""Owns how ranks come to the same tuned choices: the first one times, and the others take them.

Ranks that chose apart would compute different programs. Where choices are only loaded, each rank
loads its own, and another choice on one of them stops the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import ir_core as ir
from serve_shim.ranks.facts import Facts, compare_facts

if TYPE_CHECKING:
    from ir_core.autotuning.plan import Findings, TuningReport
    from ir_core.autotuning.session import TuningSession

_FIRST = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """What a rank would tune: `facts` must be the same on all, and so much is yet to be timed."""

    facts: Facts
    is_timed: bool
    num_missing: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """What is in force on a rank: `facts` must be the same on all ranks; None if it tunes nothing.

    `report` says how it came to it.
    """

    facts: Facts
    report: "TuningReport | None"


class CallRanks(Protocol):
    """Calls a method of the ranks' `RankTuning` by name, on all at once or on some; in order."""

    def __call__(
        self, method: str, *arguments: object, ranks: Sequence[int] | None = None
    ) -> list[Any]:
        """What they returned."""
        ...


class RankTuning:
    """One rank's part. `survey` and `record` run the model: all ranks must be in them at once."""

    def __init__(self, session: "TuningSession | None", rank: int, *, is_timed: bool) -> None:
        self._session = session
        self._rank = rank
        self._is_timed = is_timed

    def survey(self) -> Survey:
        """See which calls the model makes, and what is known of them."""
        if self._session is None:
            return Survey({"choices": "nowhere to look for them"}, is_timed=False, num_missing=0)
        self._session.look()
        facts = {f"call {_name(*each)}": "is made" for each in self._session.calls}
        if self._is_timed:
            facts |= _machine()
        return Survey(facts, self._is_timed, self._session.num_missing)

    def record(self) -> None:
        """Run the steps whose calls are timed."""
        if self._session is not None:
            self._session.record()

    def time(self) -> "Findings | None":
        """Time what is missing here, while the other ranks wait; what is known then."""
        if self._session is None:
            return None
        self._session.time()
        return self._session.findings

    def take(self, findings: "Findings", leaders: Sequence[int]) -> None:
        """Have what the first rank found; the first of each node, of `leaders`, stores it too."""
        if self._session is not None:
            self._session.take(findings, is_stored=self._rank in leaders)

    def adopt(self) -> Adopted:
        """Put the choices in force on this rank."""
        report = None if self._session is None else self._session.adopt()
        in_force = ir.registry().priorities.tuned.values()
        facts = {f"choice for {_name(each.op, each.signature)}": each.winners for each in in_force}
        return Adopted(facts, report)


def tune_together(call: CallRanks, leaders: Sequence[int]) -> "TuningReport | None":
    """Have all ranks choose alike; what the first one has to say, None where nothing is tuned.

    Args:
        call: reaches the ranks.
        leaders: the first rank of each node, rank 0 first.

    Raises:
        RanksError: timing on one rank would say nothing of another, as between unequal machines, or
            ranks have loaded different choices; names what differs.
    """
    surveys: list[Survey] = call("survey")
    compare_facts([each.facts for each in surveys], "what timing would rest on")
    if surveys[_FIRST].is_timed:
        if surveys[_FIRST].num_missing:
            call("record")
        (findings,) = call("time", ranks=[_FIRST])
        call("take", findings, leaders, ranks=range(1, len(surveys)))
    adopted: list[Adopted] = call("adopt")
    compare_facts([each.facts for each in adopted], "what timing chose")
    return adopted[_FIRST].report


def _name(op: str, signature: str) -> str:
    return f"{op}({signature})"


def _machine() -> Mapping[str, str]:
    from ir_core.autotuning.machine import machine_facts  # noqa: PLC0415 - few servers need it

    return {f"{name} of the machine": text for name, text in machine_facts().items()}
