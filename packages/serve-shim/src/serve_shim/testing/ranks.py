"""`run_on_ranks`: a function called in several processes that are the ranks of axis `tp`."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.testing.call_pickle import pickle_call, unpickle
from serve_shim.testing.errors import RankError, RankSessionError
from serve_shim.testing.messages import Answer, Failure, Request

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 30.0
# What a run may take beyond its function: ranks start, stacks are dumped, processes end.
_RUN_MARGIN_S = 120.0
_LOG_KEPT = 3000


class RaySession:
    """A local Ray of its own for any number of runs; use it as a context.

    It listens with a token that only this user can read, shows no dashboard, reports nothing to
    anyone, and leaves no process, file or shared memory behind.

    Raises:
        RankSessionError: Ray did not start; the message has the end of its log.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._mark = ProcessMark()
        self._connection, theirs = Pipe()
        with theirs, (self._directory / "log").open("wb") as log:
            self._driver = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "serve_shim.testing.ray_driver",
                    str(theirs.fileno()),
                    str(self._directory),
                ],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self._receive(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End Ray and everything it started; nothing happens the second time."""
        self._connection.close()
        try:
            self._driver.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        self._mark.end_all()
        shutil.rmtree(self._directory, ignore_errors=True)

    def processes(self) -> list[int]:
        """The ids of all living processes of this session; none once it is closed."""
        return self._mark.processes()

    def run_on_ranks(
        self,
        num_ranks: int,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = 60.0,
        collective_timeout_s: float = 30.0,
    ) -> list[Any]:
        """Call `function(*args)` on fresh ranks: see `run_on_ranks` of this module."""
        if self._connection.closed:
            raise RankSessionError("The session is closed; open another `RaySession`.")
        call = pickle_call(function, args)
        self._connection.send(Request(num_ranks, call, timeout_s, collective_timeout_s))
        answer = self._receive(timeout_s + _RUN_MARGIN_S)
        if answer.refusal:
            raise RankSessionError(f"`{_name(function)}` was not called: {answer.refusal}")
        if answer.failures:
            raise _rank_error(_name(function), answer.failures, timeout_s)
        return [unpickle(each) for each in answer.results]

    def _environment(self) -> dict[str, str]:
        token = self._directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        return {
            **os.environ,
            **self._mark.environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Otherwise gloo listens on every interface.
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def _receive(self, timeout_s: float) -> Answer:
        try:
            if self._connection.poll(timeout_s):
                return self._connection.recv()
            reason = f"said nothing for {timeout_s:g} s"
        except (EOFError, OSError):
            reason = "ended"
        log = (self._directory / "log").read_text(errors="replace")[-_LOG_KEPT:]
        self._driver.kill()
        self.close()
        raise RankSessionError(f"The process that drives the ranks {reason}. Its log ends:\n{log}")


def run_on_ranks(
    num_ranks: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 60.0,
    collective_timeout_s: float = 30.0,
    session: RaySession | None = None,
) -> list[Any]:
    """Call `function(*args)` in `num_ranks` processes, each a rank of axis `tp`.

    `ir_core.groups.get_group("tp")` tells the function which rank it is. The ranks reach each other
    by gloo and, where the C++ library was built, through shared memory. They share the machine's
    cores, and end after the call.

    Args:
        num_ranks: how many, from 1.
        function: it, the functions of its module and `args` travel by value (cloudpickle); ranks
            import nothing of the caller's tests.
        args: its arguments.
        timeout_s: for the call, counted once all ranks are there; those that still run are then
            asked for their stacks and killed.
        collective_timeout_s: how long a collective waits for a rank.
        session: a Ray to run in, which takes seconds to start; by default one of its own.

    Returns:
        What the ranks returned, in order.

    Raises:
        RankError: a rank raised, ended, or did not finish; names it and has its traceback. What a
            rank raised is the `__cause__`, if it could be pickled.
        RankSessionError: the ranks did not start.
    """
    options: dict[str, float] = {
        "timeout_s": timeout_s,
        "collective_timeout_s": collective_timeout_s,
    }
    if session is not None:
        return session.run_on_ranks(num_ranks, function, *args, **options)
    with RaySession() as own:
        return own.run_on_ranks(num_ranks, function, *args, **options)


def _rank_error(name: str, failures: tuple[Failure, ...], timeout_s: float) -> RankError:
    words = {
        "raised": "raised",
        "ended": "is gone",
        "stuck": f"did not finish, of {timeout_s:g} s at most, and was killed; its stacks",
    }
    told = [f"Rank {each.rank} {words[each.kind]}:\n{each.text.rstrip()}" for each in failures]
    error = RankError(f"`{name}` failed.\n" + "\n".join(told), failures[0].rank)
    if failures[0].exception is not None:
        error.__cause__ = unpickle(failures[0].exception)
    return error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
