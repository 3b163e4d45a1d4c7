"""Owns the generations that run now: each ends with its client, and all can be cut off at once.

A handler of a plain response is not cancelled by its server when the client goes away, so the
work runs in a task of its own, beside one that watches the connection.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    task: "asyncio.Task[Any]"
    reason: Exception | None = None


class InFlight:
    """The set of running generations of one event loop."""

    def __init__(self) -> None:
        self._jobs: set[_Job] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """How many generations run."""
        return len(self._jobs)

    async def run(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled, and has ended, when this returns or raises.

        Raises ClientDisconnect if the client goes first, and the reason given to `cut_off`.
        """
        job = _Job(asyncio.create_task(work))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        self._jobs.add(job)
        self._idle.clear()
        try:
            await asyncio.wait((job.task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            await _cancel(job.task)
            self._jobs.discard(job)
            if not self._jobs:
                self._idle.set()
        if not job.task.cancelled():
            return job.task.result()
        raise job.reason or ClientDisconnect

    def cut_off(self, reason: Exception) -> None:
        """Cancels every generation; its client is told `reason`."""
        for job in self._jobs:
            job.reason = reason
            job.task.cancel()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether nothing runs, at the latest after `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Task[Any]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
