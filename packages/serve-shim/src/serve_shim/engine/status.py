"""Owns the phase of the process and how long each start-up phase took; refuses to judge health."""

import threading
import time
from enum import StrEnum


class Phase(StrEnum):
    """The states between process start and exit, in order; `FAILED` may follow any of them."""

    INIT = "init"
    RANKS = "ranks"
    LOAD = "load"
    COMPILE = "compile"
    CAPTURE = "capture"
    WARMUP = "warmup"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class StartupStatus:
    """Where the start-up is. Safe to read and advance from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._entered = self._started
        self._phase = Phase.INIT
        self._done = 0
        self._total = 0
        self._error: str | None = None
        self._seconds: dict[Phase, float] = {}

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def done(self) -> int:
        """Steps of the current phase that are complete; 0 of 0 where it has no steps."""
        return self._done

    @property
    def total(self) -> int:
        """Steps of the current phase."""
        return self._total

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    @property
    def error(self) -> str | None:
        """Why the start failed, None otherwise."""
        return self._error

    def advance(self, phase: Phase, done: int = 0, total: int = 0) -> None:
        """Enter `phase`, or report progress within it."""
        with self._lock:
            if phase is not self._phase:
                self._enter(phase)
            self._done, self._total = done, total

    def fail(self, error: str) -> None:
        """Enter `FAILED` with a reason; the first reason stays."""
        with self._lock:
            if self._phase is not Phase.FAILED:
                self._enter(Phase.FAILED)
            self._error = self._error or error

    def report(self) -> dict[Phase, float]:
        """Seconds spent in each phase that was entered, the current one included."""
        with self._lock:
            now = time.monotonic()
            current = self._seconds.get(self._phase, 0.0) + now - self._entered
            return {**self._seconds, self._phase: current}

    def _enter(self, phase: Phase) -> None:
        now = time.monotonic()
        spent = self._seconds.get(self._phase, 0.0)
        self._seconds[self._phase] = spent + now - self._entered
        self._entered, self._phase = now, phase
        self._done = self._total = 0
