"""One engine, started, put under the load and stopped; measures, judges nothing."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tools.bench.completion_stream import Exchange, exchange, read_completion
from tools.bench.engine import Engine
from tools.bench.level_result import LevelResult, summarize
from tools.bench.load import Load, make_prompt
from tools.bench.machine_lock import MachineLock
from tools.bench.process_session import ProcessSession, machine_cpu_seconds

_POLL_S = 0.02
_LOG_TAIL = 2000


class EngineError(Exception):
    """An engine did not start or did not answer; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One engine in one round.

    Attributes:
        ready_s: start of the process to its first 200.
        first_ttft_s: time to the first token of the first request after that.
        peak_rss_bytes: of all its processes together, shared pages counted in each; 0 if unknown.
        levels: one result for each number of streams.
    """

    ready_s: float
    first_ttft_s: float
    peak_rss_bytes: int
    levels: tuple[LevelResult, ...]


def measure(engine: Engine, load: Load, log: Path, lock: MachineLock) -> EngineRun:
    """Start `engine` on a free port of this machine, load it and stop it, whatever happens.

    Holds `lock`, shared while it starts and exclusive in each level.

    Raises EngineError when it ends before it is ready, is not ready in time or refuses the first
    request. Its output is appended to `log`.
    """
    port = _free_port()
    with contextlib.ExitStack() as stack:
        with lock.shared():
            session = stack.enter_context(_start(engine, port, log))
            try:
                ready_s = _wait_ready(engine, session, port)
                first_ttft_s = asyncio.run(_warm_up(engine, load, port))
            except EngineError as error:
                text = f"`{engine.name}` {error}; its output ends:\n{_tail(log)}"
                raise EngineError(text) from None
        levels: list[LevelResult] = []
        for streams, todo in load.levels():
            with lock.exclusive():
                levels.append(_run_level(engine, load, session, port, streams, todo))
    return EngineRun(ready_s, first_ttft_s, session.peak_rss_bytes, tuple(levels))


@contextlib.contextmanager
def running(engine: Engine, log: Path) -> Generator[int]:
    """Start `engine` for the length of the block, and give the port on which it is ready.

    Raises EngineError when it ends before it is ready, or is not ready in time. Its output is
    appended to `log`.
    """
    port = _free_port()
    with _start(engine, port, log) as session:
        try:
            _wait_ready(engine, session, port)
        except EngineError as error:
            text = f"`{engine.name}` {error}; its output ends:\n{_tail(log)}"
            raise EngineError(text) from None
        yield port


class _Strangers:
    """CPU time on this machine that neither the session nor this process used since."""

    def __init__(self, session: ProcessSession) -> None:
        self._session = session
        self._start, self._base = time.perf_counter(), self._seconds()

    def cpus(self) -> float | None:
        seconds = self._seconds()
        if seconds is None or self._base is None:
            return None
        return (seconds - self._base) / (time.perf_counter() - self._start)

    def _seconds(self) -> float | None:
        machine, own = machine_cpu_seconds(), self._session.cpu_seconds()
        return None if machine is None or own is None else machine - own - time.process_time()


def _start(engine: Engine, port: int, log: Path) -> ProcessSession:
    try:
        return ProcessSession(engine.command_line(port), engine.env, log)
    except OSError as error:
        raise EngineError(f"`{engine.name}` does not start: {error}") from None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_ready(engine: Engine, session: ProcessSession, port: int) -> float:
    deadline = session.started + engine.ready_timeout
    while time.perf_counter() < deadline:
        if session.exit_code is not None:
            raise EngineError(f"ended with {session.exit_code} before it was ready")
        if _answers_200(port, engine.ready):
            return time.perf_counter() - session.started
        time.sleep(_POLL_S)
    raise EngineError(f"was not ready within {engine.ready_timeout:g} s")


def _answers_200(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


async def _warm_up(engine: Engine, load: Load, port: int) -> float:
    waits: list[float] = []
    for index in range(load.warmup):
        answer = read_completion(await _ask(engine, load, port, index))
        if answer.error is not None:
            raise EngineError(f"failed a request of the warm-up: {answer.error}")
        waits.append(answer.token_times[0] - answer.start)
    return waits[0]


def _run_level(
    engine: Engine,
    load: Load,
    session: ProcessSession,
    port: int,
    streams: int,
    todo: Iterable[int],
) -> LevelResult:
    strangers = _Strangers(session)
    cpu, start = time.process_time(), time.perf_counter()
    answers = asyncio.run(_run_streams(engine, load, port, streams, todo))
    wall_s, client_cpu_s = time.perf_counter() - start, time.process_time() - cpu
    completions = [read_completion(each) for each in answers]
    return summarize(streams, completions, wall_s, client_cpu_s, strangers.cpus())


async def _run_streams(
    engine: Engine, load: Load, port: int, streams: int, todo: Iterable[int]
) -> list[Exchange]:
    queue = iter(todo)
    answers: list[Exchange] = []
    await asyncio.gather(*(_work(engine, load, port, queue, answers) for _ in range(streams)))
    return answers


async def _work(
    engine: Engine, load: Load, port: int, queue: Iterator[int], answers: list[Exchange]
) -> None:
    for index in queue:
        answers.append(await _ask(engine, load, port, index))


async def _ask(engine: Engine, load: Load, port: int, index: int) -> Exchange:
    body = engine.body(make_prompt(index), load.max_tokens)
    return await exchange(port, body, load.timeout)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL:]
