"""A mark that processes inherit through their environment, to find and end what is left of them."""

import os
import secrets
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

_VARIABLE = "SERVE_SHIM_RANKS"
_END_TIMEOUT_S = 10.0


class ProcessMark:
    """A fresh mark; processes started with `environment`, and theirs, carry it."""

    def __init__(self, value: str = "") -> None:
        self._value = value or secrets.token_hex(16)

    @classmethod
    def inherited(cls, environ: Mapping[str, str]) -> Self:
        """The mark that a process with this environment carries, else a fresh one."""
        return cls(environ.get(_VARIABLE, ""))

    @property
    def environment(self) -> dict[str, str]:
        """What to add to the environment of a process."""
        return {_VARIABLE: self._value}

    def processes(self) -> list[int]:
        """The ids of living processes that carry the mark."""
        return [pid for pid in _all_processes() if self.is_on(pid)]

    def is_on(self, pid: int) -> bool:
        """Whether the process lives and carries the mark."""
        return f"{_VARIABLE}={self._value}".encode() in _environment_of(pid)

    def end_all(self, but: Collection[int] = ()) -> None:
        """Kill what carries the mark, except the processes `but`, until nothing does."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while (pids := set(self.processes()).difference(but)) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _all_processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    """Nothing for a process that is gone, a zombie, or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
