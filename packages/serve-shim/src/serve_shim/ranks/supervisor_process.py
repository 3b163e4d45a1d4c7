"""The server's hold on the process that supervises its ranks: start, messages, end."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from serve_shim.ranks.group_files import remove_files
from serve_shim.ranks.launch_environment import supervisor_environment
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.process_watch import describe_exit

# The supervisor gives itself eight seconds to leave a cluster.
_END_TIMEOUT_S = 11.0
_LOG_KEPT = 3000
# Ray appends some 70 characters, and a socket's path may have 107.
_LONGEST_TEMPORARY = 20


class SupervisorProcess:
    """A supervisor with a directory of its own; whatever it starts carries a mark.

    Raises:
        RanksError: the cluster cannot be used.
    """

    def __init__(self, options: LaunchOptions, environ: Mapping[str, str]) -> None:
        self._mark = ProcessMark()
        self.directory = _make_directory()
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            environment = supervisor_environment(options, self.directory, self._mark, environ)
            self._connection, self._process = self._start(environment)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def processes(self) -> list[int]:
        """The ids of all living processes of this machine that belong to the ranks."""
        return self._mark.processes()

    def send(self, message: Any) -> None:
        """Send a message, from any thread; what is sent to one that has ended is lost."""
        with self._lock, suppress(OSError):
            self._connection.send(message)

    def receive(self, timeout_s: float) -> Any:
        """The next message.

        Raises:
            EOFError: the supervisor has ended, or `hang_up` was called.
            TimeoutError: there was none within `timeout_s`.
        """
        try:
            if self._connection.poll(timeout_s):
                return self._connection.recv()
        except OSError as error:
            raise EOFError from error
        raise TimeoutError

    def how_it_ended(self) -> str:
        """In words, once it has ended; its log's last lines follow."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            return describe_exit(code)
        return "it has closed its connection, but lives"

    def log(self) -> str:
        """The end of what it and Ray have written."""
        with suppress(OSError):
            return (self.directory / "log").read_text(errors="replace")[-_LOG_KEPT:].strip()
        return ""

    def hang_up(self) -> None:
        """Close the connection for both ends, also for a thread that waits in `receive`."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait until it has ended all and itself, else do so here; remove the directory."""
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._mark.end_all()
        remove_files(self.directory)
        with self._lock:
            self._connection.close()

    def _start(self, environment: Mapping[str, str]) -> tuple[Any, subprocess.Popen[bytes]]:
        connection, theirs = Pipe()
        descriptor = theirs.fileno()
        with theirs, (self.directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # nothing is imported from where the server was started
                    "-m",
                    "serve_shim.ranks.supervisor",
                    str(descriptor),
                    str(self.directory),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        return connection, process


def _make_directory() -> Path:
    """For this user alone, where files are temporary, by a path that is short enough for Ray."""
    usual = tempfile.gettempdir()
    above = usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp"  # noqa: S108  (a random name)
    return Path(tempfile.mkdtemp(prefix="ranks-", dir=above))
