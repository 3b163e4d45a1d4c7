"""What the conformance suite found, as facts and as text or JSON. Runs no check."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How one check ended; only `PASSED` says anything in favour of an implementation."""

    PASSED = "passed"
    FAILED = "failed"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one implementation on one workload; `detail` says why it did not pass.

    `workload` and `dtype` are "" for a check that needs no arguments, `layout` also for an op
    without weights.
    """

    op: str
    provider: str
    check: str
    workload: str
    dtype: str
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    layout: str = ""

    @property
    def subject(self) -> str:
        """Implementation and arguments in one line: `op provider (layout) [workload dtype]`."""
        where = f" [{self.workload} {self.dtype}]" if self.workload else ""
        return f"{self.op} {self.reader}{where}"

    @property
    def reader(self) -> str:
        """The provider, and the layout it reads in parentheses if the op has weights."""
        return f"{self.provider} ({self.layout})" if self.layout else self.provider


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one run, in the order in which the checks ran."""

    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that must make the run fail."""
        return tuple(each for each in self.findings if each.outcome is Outcome.FAILED)

    @property
    def ok(self) -> bool:
        """Whether nothing failed and at least one check passed."""
        return not self.failures and any(each.outcome is Outcome.PASSED for each in self.findings)

    def count(self, outcome: Outcome) -> int:
        """Number of findings with this outcome."""
        return sum(each.outcome is outcome for each in self.findings)

    def to_text(self) -> str:
        """A line per implementation and layout, what did not pass and why, each failure in full."""
        lines = [line for group in self._by_implementation() for line in _summary(group)]
        for failure in self.failures:
            lines += ["", f"FAILED {failure.check}: {failure.subject}", failure.detail]
        totals = [f"{self.count(each)} {each}" for each in Outcome if self.count(each)]
        return "\n".join([*lines, "", ", ".join(totals) or "nothing to check"])

    def to_json(self) -> dict[str, Any]:
        """Plain data: `ok`, totals by outcome, and every finding."""
        return {
            "ok": self.ok,
            "totals": {str(each): self.count(each) for each in Outcome},
            "findings": [asdict(each) for each in self.findings],
        }

    def _by_implementation(self) -> list[list[Finding]]:
        groups: dict[tuple[str, str], list[Finding]] = {}
        for each in self.findings:
            groups.setdefault((each.op, each.reader), []).append(each)
        return list(groups.values())


def _summary(findings: list[Finding]) -> Iterable[str]:
    totals = Counter(each.outcome for each in findings)
    mark = "FAIL" if totals[Outcome.FAILED] else "ok" if totals[Outcome.PASSED] else "-"
    counts = ", ".join(f"{totals[each]} {each}" for each in Outcome if totals[each])
    yield f"{mark:4}  {findings[0].op}  {findings[0].reader}  {counts}"
    reasons = Counter(
        (each.outcome, each.detail)
        for each in findings
        if each.outcome not in (Outcome.PASSED, Outcome.FAILED)
    )
    for (outcome, detail), times in reasons.items():
        yield f"        {outcome}: {detail}" + (f" ({times} times)" if times > 1 else "")
