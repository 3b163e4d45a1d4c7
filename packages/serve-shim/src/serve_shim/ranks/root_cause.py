"""What was seen of each rank once one has failed, and which of it is the root cause."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

ENGINE_EXIT_CODE = 5
NO_RANK = -1


class Cause(IntEnum):
    """What happened to a rank; the smaller, the nearer to the root."""

    RAY_ENDED = 0
    PROCESS_ENDED = 1
    RAISED = 2
    LEFT = 3
    SILENT = 4
    CONSEQUENCE = 5


@dataclass(frozen=True, slots=True)
class Report:
    """What happened to a rank, in a line; `detail` is a traceback, or Ray's words."""

    rank: int
    cause: Cause
    summary: str
    detail: str = ""
    exit_code: int = ENGINE_EXIT_CODE


class Reports:
    """The reports on all ranks, at most one each, in the order in which they came."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Report] = {}

    def __iter__(self) -> Iterator[Report]:
        return iter(self._by_rank.values())

    def __contains__(self, rank: int) -> bool:
        return rank in self._by_rank

    def add(self, report: Report) -> None:
        """Take a report; a later one of a rank counts only if it explains the earlier one."""
        before = self._by_rank.get(report.rank)
        explains = before is not None and before.cause > report.cause
        if before is None or (explains and before.cause is not Cause.RAISED):
            self._by_rank[report.rank] = report

    def root(self) -> Report:
        """The report nearest to the root; of equals, the first that came."""
        return min(self._by_rank.values(), key=lambda report: report.cause)
