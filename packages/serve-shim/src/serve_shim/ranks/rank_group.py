"""`RankGroup`: objects of one class, each in a process of its own, that are called all at once.

Imports no Ray: a process of its own owns it, and this one only talks to that.
"""

import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from serve_shim.errors import RankFailedError, RanksError
from serve_shim.ranks.group_files import shared_memory_prefix
from serve_shim.ranks.launch_options import LaunchOptions, RankPlace
from serve_shim.ranks.messages import (
    Begin,
    CallRequest,
    CannotStart,
    Failure,
    Progress,
    Returned,
    Started,
    WatchClosely,
)
from serve_shim.ranks.root_cause import ENGINE_EXIT_CODE, NO_RANK
from serve_shim.ranks.supervisor_process import SupervisorProcess
from serve_shim.startup import count_cores

logger = logging.getLogger(__name__)

# What a start may take beyond its limit: an interpreter starts, stacks are dumped.
_START_MARGIN_S = 20.0
# The supervisor tells each second that it lives.
_SUPERVISOR_SILENCE_S = 30.0


class RankGroup:
    """Ranks that live until `close`, or until one of them fails, which fails all."""

    places: tuple[RankPlace, ...]

    def __init__(self, supervisor: SupervisorProcess, num_ranks: int) -> None:
        """Use `start`."""
        self._supervisor = supervisor
        self._num_ranks = num_ranks
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._answers: dict[int, SimpleQueue[Progress | Returned | Failure]] = {}
        self._phase = "start"
        self._failure: Failure | None = None
        self._end: Failure | None = None  # the failure, or that the group was closed
        self._callbacks: list[Callable[[RankFailedError], None]] = []
        self._is_closing = False
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="rank-group", daemon=True)

    @classmethod
    def start(cls, rank_class: str, options: LaunchOptions) -> Self:
        """Start the ranks, and on each construct `Class(rank, num_ranks)`.

        Args:
            rank_class: `package.module:Class`, a plain class that the ranks can import. Its object
                is made and called on one and the same thread. An attribute `progress`, a tuple
                `(done, total)`, is read from another thread now and then.
            options: how many, where, and with which limits.

        Raises:
            RanksError: no Ray, one that is open to all, too few resources, or not in time.
            RankFailedError: a rank failed while its object was made.
        """
        supervisor = SupervisorProcess(options, os.environ)
        group = cls(supervisor, options.num_ranks)
        try:
            supervisor.send(Begin(rank_class, options, count_cores(), os.getcwd()))
            group.places = group._wait_for_start(options.start_timeout_s + _START_MARGIN_S)
        except BaseException:
            group.close()
            raise
        group._phase = "idle"
        group._reader.start()
        return group

    @property
    def directory(self) -> Path:
        """Files of the group, on this machine, removed at its end; nobody else can read them."""
        return self._supervisor.directory

    @property
    def shared_memory_prefix(self) -> str:
        """Names in shared memory that begin so are removed with the group."""
        return shared_memory_prefix(self.directory)

    @property
    def failure(self) -> RankFailedError | None:
        """What has failed, once it has, whether or not a call was under way."""
        return None if self._failure is None else _error(self._failure)

    def call(
        self,
        method: str,
        *args: object,
        phase: str,
        timeout_s: float | None,
        ranks: Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        """Call a method on all ranks at once, or on `ranks`, and wait for all.

        Args:
            method: of the ranks' class.
            args: the same for all; pickled, as are the results.
            phase: names in errors what the ranks are doing.
            timeout_s: after it, ranks that are not done have failed; None is no limit.
            ranks: which ranks; by default all.
            progress: is called here with `(done, total)` of the slowest rank, as it changes.

        Returns:
            What the ranks returned, in order of ranks, or of `ranks`.

        Raises:
            RankFailedError: the root cause of a rank's failure, now or earlier; the rest is logged.
        """
        chosen = tuple(range(self._num_ranks)) if ranks is None else tuple(ranks)
        answers: SimpleQueue[Progress | Returned | Failure] = SimpleQueue()
        number = self._submit(method, args, phase, timeout_s, chosen, answers)
        try:
            while True:
                answer = answers.get()
                if isinstance(answer, Failure):
                    raise _error(answer)
                if isinstance(answer, Returned):
                    return [pickle.loads(each) for each in answer.results]  # noqa: S301  (of ours)
                if progress is not None:
                    progress(answer.done, answer.total)
        finally:
            self._phase = "idle"
            with self._lock:
                self._answers.pop(number, None)

    def start_serving(self, method: str, *args: object) -> None:
        """Call a method on all ranks that lasts until `close`; that it ends is a failure.

        From now on the ranks are watched closely, and `call` would wait for ever.

        Raises:
            RankFailedError: the ranks have failed before.
        """
        ranks = tuple(range(self._num_ranks))
        self._submit(method, args, "serving", None, ranks, None)
        self.watch_closely()

    def watch_closely(self) -> None:
        """Let no rank be silent for longer than `heartbeat_timeout_s` from now on."""
        self._supervisor.send(WatchClosely())

    def on_failure(self, callback: Callable[[RankFailedError], None]) -> None:
        """Have `callback` called once when the ranks fail, or now if they have; from a thread."""
        with self._lock:
            if self._failure is None:
                self._callbacks.append(callback)
                return
            error = _error(self._failure)
        threading.Thread(target=callback, args=(error,), name="rank-failure", daemon=True).start()

    def processes(self) -> list[int]:
        """The ids of this machine's living processes that belong to the group."""
        return self._supervisor.processes()

    def close(self) -> None:
        """End the ranks, the Ray that was started for them, and all their files.

        From any thread, any number of times; each returns when all is gone, within 15 seconds.
        """
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
        if not is_first:
            self._closed.wait()
            return
        try:
            self._supervisor.hang_up()
            self._supervisor.end()
        finally:
            self._closed.set()

    def _submit(
        self,
        method: str,
        args: tuple[object, ...],
        phase: str,
        timeout_s: float | None,
        ranks: tuple[int, ...],
        answers: SimpleQueue[Progress | Returned | Failure] | None,
    ) -> int:
        arguments = pickle.dumps(args)
        with self._lock:
            if self._end is not None:
                raise _error(self._end)
            number = next(self._numbers)
            if answers is not None:
                self._answers[number] = answers
            self._phase = phase
        is_serving = answers is None
        self._supervisor.send(
            CallRequest(number, method, arguments, phase, timeout_s, ranks, is_serving)
        )
        return number

    def _wait_for_start(self, timeout_s: float) -> tuple[RankPlace, ...]:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self._supervisor.receive(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                log = self._supervisor.log()
                raise RanksError(
                    f"the ranks did not start within {timeout_s:g} s; the log of Ray ends:\n{log}"
                ) from None
            except EOFError:
                log, how = self._supervisor.log(), self._supervisor.how_it_ended()
                raise RanksError(f"the supervisor of the ranks has ended ({how}):\n{log}") from None
            if isinstance(message, Started):
                return message.places
            if isinstance(message, CannotStart):
                raise RanksError(message.reason)
            if isinstance(message, Failure):
                _log(message)
                raise _error(message)

    def _read(self) -> None:
        """Pass on what the supervisor says, until the ranks have failed or the group is closed."""
        while self._end is None:
            try:
                message = self._supervisor.receive(_SUPERVISOR_SILENCE_S)
            except TimeoutError:
                message = self._lost(f"was silent for {_SUPERVISOR_SILENCE_S:g} s")
            except EOFError:
                if self._is_closing:
                    message = self._lost("was closed")
                else:
                    message = self._lost(f"has ended ({self._supervisor.how_it_ended()})")
            except Exception as error:
                # Whoever waits for an answer must not wait for ever.
                message = self._lost(f"cannot be understood: {type(error).__name__}: {error}")
            if isinstance(message, Failure):
                self._finish(message)
            elif isinstance(message, Progress | Returned):
                with self._lock:
                    answers = self._answers.get(message.number)
                if answers is not None:
                    answers.put(message)

    def _lost(self, what: str) -> Failure:
        text = f"the supervisor of the ranks {what}, in phase {self._phase}"
        log = f"the log of the ranks' supervisor ends:\n{self._supervisor.log()}"
        return Failure(NO_RANK, self._phase, text, ENGINE_EXIT_CODE, (log,))

    def _finish(self, end: Failure) -> None:
        is_failure = not self._is_closing
        if is_failure:
            _log(end)
        with self._lock:
            self._end = end
            self._failure = end if is_failure else None
            waiting = list(self._answers.values())
            callbacks, self._callbacks = self._callbacks, []
        for answers in waiting:
            answers.put(end)
        for callback in callbacks if is_failure else ():
            try:
                callback(_error(end))
            except Exception:
                logger.exception("what was to be done once a rank has failed, failed too")


def _log(failure: Failure) -> None:
    """What else is known, first: the root cause is to be the last that is read."""
    for text in failure.log:
        logger.error("%s", text)


def _error(failure: Failure) -> RankFailedError:
    return RankFailedError(
        failure.message, rank=failure.rank, phase=failure.phase, exit_code=failure.exit_code
    )
