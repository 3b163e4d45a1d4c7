"""A server process with all it starts, as one session: started, watched and stopped together.

What is outside the session is never touched. Memory and CPU time are read from /proc; where there
is none they stay unknown and only the process itself is stopped by its group.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PROC = Path("/proc")
_SAMPLE_S = 0.25
_PATIENCE_S = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0))


class ProcessSession:
    """A started command, stopped at the end of its `with` block."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.started = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                env=os.environ | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.peak_rss_bytes = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def __enter__(self) -> "ProcessSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """That of the command, None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End every process of the session: politely, then not."""
        self._ended.set()
        for number, patience in _PATIENCE_S:
            self._signal(number)
            end = time.monotonic() + patience
            while time.monotonic() < end and self._is_alive():
                time.sleep(0.05)
            if not self._is_alive():
                break
        self._process.wait()
        self._sampler.join()

    def cpu_seconds(self) -> float | None:
        """CPU time of the session's living processes; None without /proc."""
        ticks = [sum(map(int, fields[11:13])) for _, fields in self._processes()]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:  # for those that left the group but not the session
            for pid, _ in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _is_alive(self) -> bool:
        return self._process.poll() is None or any(True for _ in self._processes())

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            pages = sum(int(fields[21]) for _, fields in self._processes())
            self.peak_rss_bytes = max(self.peak_rss_bytes, pages * os.sysconf("SC_PAGE_SIZE"))

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        """Pid and the fields of `stat` after the name, from the state on, of the session's own."""
        for entry in _PROC.glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid and fields[0] != "Z":
                yield int(entry.parent.name), fields


def machine_cpu_seconds() -> float | None:
    """Busy seconds of all the machine's CPUs since boot; None without /proc."""
    try:
        first = (_PROC / "stat").read_text().partition("\n")[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, soft = map(int, first[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
