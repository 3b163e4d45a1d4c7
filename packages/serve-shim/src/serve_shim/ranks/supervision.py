"""Starts ranks, passes calls on to them, watches them, and says when and why they have failed.

Lives in the supervisor's process, and ends nothing: that process does.
"""

import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from serve_shim.errors import RanksError
from serve_shim.ranks.actors import start_actors
from serve_shim.ranks.hearing import Hearing, is_unavailable, report_of
from serve_shim.ranks.messages import (
    Alive,
    Begin,
    CallRequest,
    CannotStart,
    FromSupervisor,
    Progress,
    Returned,
    Started,
    WatchClosely,
)
from serve_shim.ranks.placement import place_ranks, rank_resources
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.rank_handle import RankHandle
from serve_shim.ranks.ray_session import HeadWatch, LocalRayWatch, join_ray, start_local_ray
from serve_shim.ranks.ray_words import first_words
from serve_shim.ranks.root_cause import NO_RANK, Cause, Report

LEAVE_TIMEOUT_S = 8.0
_TICK_S = 0.2
_BEAT_S = 1.0
# Until they serve, ranks may be busy in code that lets no other thread run.
_START_SILENCE_S = 60.0
# Who was stopped for so long should not blame others for what was not heard meanwhile.
_LATE_S = 2.0
# What each part of a start may take when those before it were late.
_LEAST_S = 1.0
_CONSTRUCT = 0


@dataclass(slots=True)
class _OpenCall:
    request: CallRequest
    pending: set[int]
    deadline: float | None
    results: dict[int, bytes] = field(default_factory=dict[int, bytes])
    progress: tuple[int, int] | None = None


class Supervision:
    """One thread runs it; what other threads learn comes to it as an event."""

    def __init__(
        self, connection: Connection, begin: Begin, directory: Path, mark: ProcessMark
    ) -> None:
        self._connection = connection
        self._begin = begin
        self._directory = directory
        self._mark = mark
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._handles: list[RankHandle] = []
        self._group: Any = None
        self._ray_watch: LocalRayWatch | None = None
        self._calls: dict[int, _OpenCall] = {}
        self._unheard: set[RankHandle] = set()
        self._hearing: Hearing | None = None
        self._silence_s = _START_SILENCE_S
        self._is_over = False
        self._last_tick = self._last_beat = time.monotonic()

    def submit(self, request: CallRequest | WatchClosely) -> None:
        """Let the ranks be called, or watched closely; from any thread."""
        self._events.put(partial(self._take_request, request))

    def run(self) -> None:
        """Start the ranks and watch over them; does not return."""
        try:
            self._start()
        except RanksError as error:
            self._send(CannotStart(str(error)))
        except Exception as error:
            traceback.print_exc()
            self._send(CannotStart(f"Ray did not start: {first_words(error)}"))
        self._last_tick = time.monotonic()
        while True:
            with suppress(Empty):
                self._events.get(timeout=_TICK_S)()
                while True:
                    self._events.get_nowait()()
            self._tick(time.monotonic())

    def leave(self) -> None:
        """End the ranks in a cluster, and leave it; from any thread."""
        pulses = [pulse for handle in self._handles if (pulse := handle.kill()) is not None]
        if pulses:
            ray.wait(pulses, num_returns=len(pulses), timeout=LEAVE_TIMEOUT_S / 2)
        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()

    def _start(self) -> None:
        options, num_cores = self._begin.options, self._begin.num_cores
        end = time.monotonic() + options.start_timeout_s
        if options.ray_address is None:
            start_local_ray(self._directory, num_cores, uses_gpus=options.gpus_per_rank > 0)
            self._ray_watch = LocalRayWatch()
            per_rank = rank_resources(options.num_ranks, options.gpus_per_rank, num_cores)
        else:
            join_ray(options.ray_address)
            HeadWatch(options.ray_address, self._lose_ray).start()
            per_rank = rank_resources(options.num_ranks, options.gpus_per_rank, None)
        self._group = place_ranks(options.num_ranks, per_rank, end - time.monotonic())
        left = max(_LEAST_S, end - time.monotonic())
        self._handles = start_actors(
            self._begin, self._group, per_rank, self._directory, self._mark, left
        )
        self._construct(max(_LEAST_S, end - time.monotonic()))

    def _construct(self, timeout_s: float) -> None:
        ranks = tuple(range(len(self._handles)))
        name = self._begin.rank_class
        request = CallRequest(_CONSTRUCT, name, b"", "start", timeout_s, ranks)
        self._calls[_CONSTRUCT] = _OpenCall(request, set(ranks), time.monotonic() + timeout_s)
        for handle in self._handles:
            self._take_pulse(handle)
            handle.construct(name, self._later(self._take_outcome, _CONSTRUCT, handle.rank))

    def _take_request(self, request: CallRequest | WatchClosely) -> None:
        if isinstance(request, WatchClosely):
            self._silence_s = self._begin.options.heartbeat_timeout_s
            return
        limit = request.timeout_s
        deadline = None if limit is None else time.monotonic() + limit
        self._calls[request.number] = _OpenCall(request, set(request.ranks), deadline)
        for rank in request.ranks:
            then = self._later(self._take_outcome, request.number, rank)
            self._handles[rank].call(request.method, request.arguments, then)

    def _take_outcome(self, number: int, rank: int, future: Future[Any]) -> None:
        call = self._calls[number]
        call.pending.discard(rank)
        report = report_of(rank, future)
        if report is None and call.request.is_serving:
            words = f"`{call.request.method}` returned, which was to last"
            report = Report(rank, Cause.LEFT, words)
        if report is not None:
            self._hear(report)
            return
        call.results[rank] = future.result().data
        if not call.pending and len(call.results) == len(call.request.ranks):
            del self._calls[number]
            self._send(self._answer(call))

    def _answer(self, call: _OpenCall) -> FromSupervisor:
        if call.request.number == _CONSTRUCT:
            return Started(tuple(each.place for each in self._handles if each.place is not None))
        results = tuple(call.results[rank] for rank in call.request.ranks)
        return Returned(call.request.number, results)

    def _take_pulse(self, handle: RankHandle, *, is_late: bool = False) -> None:
        then = self._later(self._feel_pulse, handle)
        handle.take_pulse(None if is_late else time.monotonic(), then)

    def _feel_pulse(self, handle: RankHandle, future: Future[Any]) -> None:
        if is_unavailable(future):
            self._unheard.add(handle)
            return
        report = report_of(handle.rank, future)
        if report is not None:
            self._hear(report)
            return
        handle.note_progress(future.result())
        self._take_pulse(handle)
        self._tell_progress()

    def _tell_progress(self) -> None:
        for number, call in self._calls.items():
            told = [self._handles[rank].progress for rank in call.request.ranks]
            known = [each for each in told if each is not None]
            slowest = min(known, key=lambda each: each[0] / max(1, each[1]), default=None)
            if slowest is not None and slowest != call.progress:
                call.progress = slowest
                self._send(Progress(number, *slowest))

    def _lose_ray(self, words: str) -> None:
        self._events.put(partial(self._hear, Report(NO_RANK, Cause.RAY_ENDED, words)))

    def _hear(self, report: Report) -> None:
        if not self._is_over:
            self._hearing = self._hearing or Hearing()
            self._hearing.add(report)

    def _tick(self, now: float) -> None:
        if now - self._last_tick > _LATE_S:
            for handle in self._handles:
                handle.forgive(now - self._last_tick)
        self._last_tick = now
        if now - self._last_beat > _BEAT_S:
            self._last_beat = now
            self._send(Alive())
            self._look_at_ray()
            while self._unheard:
                self._take_pulse(self._unheard.pop(), is_late=True)
        if self._is_over:
            return
        self._look_for_silence(now)
        self._look_for_overdue(now)
        if self._hearing is not None and self._hearing.is_over(now, self._untold(self._hearing)):
            self._conclude(self._hearing)

    def _look_at_ray(self) -> None:
        if self._ray_watch is not None and (words := self._ray_watch.ended()):
            self._hear(Report(NO_RANK, Cause.RAY_ENDED, words))

    def _look_for_silence(self, now: float) -> None:
        limit = self._silence_s
        for handle in self._handles:
            if handle.silent_for(now) <= limit:
                continue
            if handle.watch is not None and handle.watch.is_gone:
                self._hear(Report(handle.rank, Cause.PROCESS_ENDED, ""))
            else:
                words = f"silent for {limit:g} s; its process is {handle.state()}"
                self._hear(Report(handle.rank, Cause.SILENT, words))

    def _look_for_overdue(self, now: float) -> None:
        for call in self._calls.values():
            if call.deadline is None or now < call.deadline:
                continue
            call.deadline = None
            words = f"`{call.request.method}` did not finish within {call.request.timeout_s:.3g} s"
            for rank in sorted(call.pending):
                self._hear(Report(rank, Cause.SILENT, words))

    def _untold(self, hearing: Hearing) -> list[int]:
        pending = {rank for call in self._calls.values() for rank in call.pending}
        return sorted(rank for rank in pending if not hearing.has_told(rank))

    def _conclude(self, hearing: Hearing) -> None:
        self._look_at_ray()
        phases = [self._phase(handle.rank) for handle in self._handles]
        failure = hearing.conclude(self._handles, self._untold(hearing), phases)
        self._is_over = True
        self._send(failure)

    def _phase(self, rank: int) -> str:
        calls = (call.request for call in self._calls.values())
        return next((request.phase for request in calls if rank in request.ranks), "idle")

    def _later(self, function: Callable[..., None], *args: Any) -> Callable[[Future[Any]], None]:
        return lambda future: self._events.put(partial(function, *args, future))

    def _send(self, message: FromSupervisor) -> None:
        with suppress(OSError):  # who listens no more is noticed by `_listen`
            self._connection.send(message)
