"""One call of a function on all ranks: actors that are made for it, watched, and killed after."""

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayError

from ir_kernels.all_reduce.segment import new_name, remove_name
from serve_shim.testing.messages import Answer, Failure, Request
from serve_shim.testing.rank import Place, Rank

_ray: Any = ray  # its annotations do not know all that `remote` takes
_START_TIMEOUT_S = 90.0
# After one rank has failed, what the others make of it is worth hearing.
_GRACE_S = 2.0
_STACK_DUMP_S = 3.0
_END_TIMEOUT_S = 10.0


class RankRun:
    """A context in which the ranks of one request live; none is left behind it."""

    def __init__(self, request: Request, directory: Path) -> None:
        self._request = request
        self._directory = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        self._name = new_name()
        self._places = [
            Place(
                rank, request.num_ranks, self._name, self._directory, request.collective_timeout_s
            )
            for rank in range(request.num_ranks)
        ]
        self._actors: list[Any] = []
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        _end(self._pids)
        remove_name(self._name)

    def answer(self) -> Answer:
        """Start the ranks, call the function on all, and wait for the last, or for a failure."""
        # Places in Ray's books, not cores: ranks may be more than those.
        rank_class = _ray.remote(num_cpus=0, max_restarts=0, max_concurrency=1)(Rank)
        self._actors = [rank_class.remote(place) for place in self._places]
        try:
            started = [actor.start.remote() for actor in self._actors]
            self._pids = ray.get(started, timeout=_START_TIMEOUT_S)
        except RayError as error:
            return Answer(refusal=f"the ranks did not start: {error}")
        calls = [actor.run.remote(self._request.call) for actor in self._actors]
        results, failures = self._collect(calls)
        if failures:
            return Answer(failures=tuple(failures))
        return Answer(results=tuple(results[rank] for rank in range(len(calls))))

    def _collect(self, calls: Sequence[Any]) -> tuple[dict[int, bytes], list[Failure]]:
        results: dict[int, bytes] = {}
        failures: list[Failure] = []
        pending = list(calls)
        deadline = time.monotonic() + self._request.timeout_s
        while pending:
            left = max(0.0, deadline - time.monotonic())
            done, pending = ray.wait(pending, num_returns=1, timeout=left)
            if not done:
                break
            rank = calls.index(done[0])
            outcome = _outcome(rank, done[0])
            if isinstance(outcome, bytes):
                results[rank] = outcome
                continue
            if not failures:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            failures.append(outcome)
        failures += self._stuck([calls.index(each) for each in pending])
        return results, failures

    def _stuck(self, ranks: Sequence[int]) -> list[Failure]:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        return [Failure(rank, "stuck", self._stacks(rank)) for rank in ranks]

    def _stacks(self, rank: int) -> str:
        """What the rank dumped, once it no longer grows."""
        path = self._places[rank].stacks
        deadline = time.monotonic() + _STACK_DUMP_S
        text = ""
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, text = text, path.read_text(errors="replace")
            if text and text == before:
                break
        return text or "(it dumped no stack)"


def _outcome(rank: int, call: Any) -> bytes | Failure:
    try:
        result, text, exception = ray.get(call)
    except RayError as error:
        # Ray goes on with a paragraph of guesses.
        return Failure(rank, "ended", str(error).partition(" Some common causes")[0].strip())
    return Failure(rank, "raised", text, exception) if result is None else result


def _end(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + _END_TIMEOUT_S
    left = list(pids)
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = [pid for pid in left if _is_alive(pid)]
        if time.monotonic() > deadline:
            return
        if left:
            time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X"}
