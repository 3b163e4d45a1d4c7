"""A mark that processes inherit through their environment, to find and end what is left of them."""

import os
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

_VARIABLE = "SERVE_SHIM_TEST_RANKS"
_END_TIMEOUT_S = 10.0


class ProcessMark:
    """A fresh mark; processes started with `environment`, and theirs, carry it."""

    def __init__(self) -> None:
        self._value = secrets.token_hex(16)

    @property
    def environment(self) -> dict[str, str]:
        """What to add to the environment of a process."""
        return {_VARIABLE: self._value}

    def processes(self) -> list[int]:
        """The ids of living processes that carry the mark."""
        wanted = f"{_VARIABLE}={self._value}".encode()
        return [pid for pid in _own_processes() if wanted in _environment_of(pid)]

    def end_all(self) -> None:
        """Kill what carries the mark, until nothing does."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _own_processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    """Nothing for a process that is gone, a zombie, or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
