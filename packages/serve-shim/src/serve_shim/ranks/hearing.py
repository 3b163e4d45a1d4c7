"""What is heard of the ranks in the seconds after one has failed, until the root cause is clear."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from serve_shim.ranks.messages import Failure
from serve_shim.ranks.rank_actor import Raised
from serve_shim.ranks.rank_handle import RankHandle
from serve_shim.ranks.ray_words import describe_end, first_words
from serve_shim.ranks.root_cause import ENGINE_EXIT_CODE, NO_RANK, Cause, Report, Reports

# A killed process has to be reaped before it can be told how it ended.
_LEAST_S = 0.3
_MOST_S = 1.0
_MOST_FOR_A_CAUSE_S = 2.0
_STACKS_S = 0.5
# For all ranks of other nodes together: those of a lost one do not answer.
_REMOTE_STACKS_S = 3.0


def report_of(rank: int, future: Future[Any]) -> Report | None:
    """What the outcome of a call in Ray says of the rank; None where it says nothing bad."""
    error = future.exception()
    if isinstance(error, RayTaskError):  # beside the object: in the actor's own code
        return Report(rank, Cause.RAISED, str(error.cause), str(error))
    if isinstance(error, RayError):
        return Report(
            rank, Cause.PROCESS_ENDED, "", f"{type(error).__name__}: {first_words(error)}"
        )
    if error is not None:
        return Report(rank, Cause.RAISED, f"{type(error).__name__}: {error}")
    outcome = future.result()
    if not isinstance(outcome, Raised):
        return None
    cause = Cause.CONSEQUENCE if outcome.is_consequence else Cause.RAISED
    summary = f"{outcome.type_name}: {outcome.message}"
    return Report(rank, cause, summary, outcome.trace, outcome.exit_code)


def is_unavailable(future: Future[Any]) -> bool:
    """Whether Ray has for now lost touch with the rank."""
    return isinstance(future.exception(), ActorUnavailableError)


class Hearing:
    """Takes reports from the first one on; closes when all have told, or patience ends."""

    def __init__(self) -> None:
        self._reports = Reports()
        self._start = time.monotonic()

    def add(self, report: Report) -> None:
        """Take what was seen of a rank."""
        self._reports.add(report)

    def has_told(self, rank: int) -> bool:
        """Whether there is a report of the rank."""
        return rank in self._reports

    def is_over(self, now: float, untold: Collection[int]) -> bool:
        """Whether nothing more is to be waited for; `untold` are ranks that may yet report."""
        past = now - self._start
        is_explained = self._reports.root().cause is not Cause.CONSEQUENCE
        patience = _MOST_S if is_explained else _MOST_FOR_A_CAUSE_S
        return past > patience or (past > _LEAST_S and not untold)

    def conclude(
        self, handles: Sequence[RankHandle], untold: Collection[int], phases: Sequence[str]
    ) -> Failure:
        """The root cause, with everything else for the log; `phases` in order of ranks.

        Ranks that others complain of and that do not tell count as stuck.
        """
        if self._reports.root().cause is Cause.CONSEQUENCE:
            complaint = self._reports.root()
            for rank in untold:
                words = f"did not finish, while rank {complaint.rank} had {complaint.summary}"
                self._reports.add(Report(rank, Cause.SILENT, words))
        reports = [_completed(report, handles) for report in self._reports]
        cause = self._reports.root()
        root = next(report for report in reports if report.rank == cause.rank)
        stuck = {report.rank for report in reports if report.cause is Cause.SILENT} | set(untold)
        log = [_told(report, handles) for report in reports if report is not root]
        log += _stacks([handles[rank] for rank in sorted(stuck)])
        if root.detail:
            log.append(_told(root, handles))
        if root.rank == NO_RANK:
            phase = next(iter(phases), "start")
            message = f"{root.summary}, in phase {phase}"
            return Failure(NO_RANK, phase, message, ENGINE_EXIT_CODE, tuple(log))
        phase = phases[root.rank]
        message = f"{handles[root.rank]} failed in phase {phase}: {root.summary}"
        return Failure(root.rank, phase, message, root.exit_code, tuple(log))


def _completed(report: Report, handles: Sequence[RankHandle]) -> Report:
    if report.cause is not Cause.PROCESS_ENDED:
        return report
    watch = handles[report.rank].watch
    seen = "" if watch is None else watch.how_it_ended()
    words = handles[report.rank].last_words()
    detail = f"{report.detail}\nIts log ends:\n{words}" if words else report.detail
    return replace(report, summary=describe_end(report.detail, seen), detail=detail)


def _told(report: Report, handles: Sequence[RankHandle]) -> str:
    who = "Ray" if report.rank == NO_RANK else handles[report.rank]
    return f"{who}: {report.summary}\n{report.detail}".rstrip()


def _stacks(handles: Sequence[RankHandle]) -> list[str]:
    asked = [(handle, handle.ask_for_stacks()) for handle in handles]
    if asked:
        time.sleep(_STACKS_S)
    deadline = time.monotonic() + _REMOTE_STACKS_S
    return [
        f"{handle}: its process is {handle.state()}; its stacks:\n"
        f"{handle.stacks(request, deadline).rstrip() or '(it dumped none)'}"
        for handle, request in asked
    ]
