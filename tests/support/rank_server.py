"""A server with ranks: what it is made of, how long it takes to end, and what is left of it."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from server_process import Server, start

LEFT_TIMEOUT_S = 15.0
_SHARED = "/dev/shm"  # noqa: S108 - where Linux keeps it
_MARK = "TEST_SERVER_LOG"
_RANK = re.compile(r"Rank (\d+): pid (\d+)")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server ended, in seconds since what ended it."""

    code: int
    health_false_s: float
    exit_s: float
    last_line: str

    def __str__(self) -> str:
        return (
            f"health false after {self.health_false_s:.1f} s, exit {self.code} after "
            f"{self.exit_s:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class RankServer:
    """A server process, and the files in shared memory that were there before it."""

    server: Server
    shared_before: frozenset[str]

    @classmethod
    def start(
        cls, log_path: Path, *arguments: str, env: Mapping[str, str] | None = None
    ) -> "RankServer":
        before = shared_memory()
        # A mark, by which everything that it starts is found.
        environment = {**(env or {}), _MARK: str(log_path)}
        return cls(start(log_path, *arguments, env=environment), before)

    @property
    def log(self) -> str:
        return self.server.log

    def rank_pids(self) -> dict[int, int]:
        """The ranks' processes, once the log names them."""
        return {int(rank): int(pid) for rank, pid in _RANK.findall(self.log)}

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.log
            assert self.server.process.poll() is None, self.log
            time.sleep(0.02)

    def complete(self, **fields: Any) -> httpx.Response:
        body = {"prompt": [5, 9, 14], "max_tokens": 4, "temperature": 0, **fields}
        url = f"{self.server.url}/v1/completions"
        return httpx.post(url, json=body, timeout=100, trust_env=False)

    def in_flight(self, num_tokens: int, *, waits: bool = True) -> "InFlight":
        """A request for so many tokens; by default it is being answered when this returns."""
        steps = self._num_steps()
        request = InFlight(self, num_tokens)
        if waits:
            self.wait_for(lambda: self._num_steps() > steps + 3)
        return request

    def ending(self, cause: Callable[[], object], timeout_s: float = 30.0) -> Ending:
        """Do what ends the server, and watch it end."""
        started = time.monotonic()
        cause()
        health_false = exited = None
        while exited is None:
            now = time.monotonic() - started
            assert now < timeout_s, f"it goes on:\n{self.log}"
            if health_false is None and not self._is_healthy():
                health_false = now
            if self.server.process.poll() is not None:
                exited = now
            time.sleep(0.02)
        lines = self.log.rstrip().splitlines()
        ending = Ending(
            self.server.process.returncode,
            health_false or exited,
            exited,
            lines[-1] if lines else "",
        )
        print(ending)
        self.assert_nothing_left()
        return ending

    def assert_nothing_left(self) -> None:
        """No process, port, shared memory or directory of it within the time."""
        deadline = time.monotonic() + LEFT_TIMEOUT_S
        while left := self._left():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def end(self) -> None:
        process = self.server.process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.assert_nothing_left()

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.server.url}/health", timeout=2, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _num_steps(self) -> float:
        text = self.server.get("/metrics").text
        found = re.search(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def _left(self) -> list[str]:
        shared = sorted(shared_memory() - self.shared_before)
        return [*filter(None, (self._describe(pid) for pid in psutil.pids())), *shared]

    def _describe(self, pid: int) -> str:
        """A living process that the server has started, directly or not; empty for any other."""
        try:
            process = psutil.Process(pid)
            if process.environ().get(_MARK) != str(self.server.log_path):
                return ""
            is_gone = process.status() == psutil.STATUS_ZOMBIE
            return "" if is_gone else f"process {pid}: {' '.join(process.cmdline())[:200]}"
        except psutil.Error:
            return ""


StartServer = Callable[..., RankServer]
"""The fixture `start_server`: arguments of the command, and `env`."""


class InFlight:
    """A request on a thread of its own, and its answer."""

    def __init__(self, server: RankServer, num_tokens: int) -> None:
        self._answer: httpx.Response | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(server, num_tokens), daemon=True)
        self._thread.start()

    def status(self, timeout_s: float = 15.0) -> int | str:
        """The status of the answer, or how the connection broke."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the request hangs"
        answer = self._answer
        return answer.status_code if isinstance(answer, httpx.Response) else repr(answer)

    def _run(self, server: RankServer, num_tokens: int) -> None:
        try:
            self._answer = server.complete(max_tokens=num_tokens, ignore_eos=True)
        except Exception as error:
            self._answer = error


def shared_memory() -> frozenset[str]:
    return frozenset(name for name in os.listdir(_SHARED) if name.startswith("ir-"))
