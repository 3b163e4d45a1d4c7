"""A process of this machine, watched without being its parent: its state, and how it ended."""

import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

# `PIDFD_GET_INFO` of linux/pidfd.h (6.13; the exit status since 6.15), with a struct of 64 bytes.
_INFO_BYTES = 64
_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_WANT_EXIT = 1 << 3
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a device"}


class ProcessWatch:
    """Holds on to a living process, so that its id cannot come to mean another one.

    Raises:
        ProcessLookupError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, reaped by its parent or not."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _letter(self.pid) in {"", "Z", "X"}

    def state(self) -> str:
        """In words: `running`, `stopped`, `gone` and the like."""
        return "gone" if self.is_gone else _STATES.get(_letter(self.pid), "running")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def how_it_ended(self) -> str:
        """`killed by SIGKILL`, `exit code 3`; empty while it runs, or where the kernel is too old.

        What is no child of ours tells only after its parent has reaped it.
        """
        code = self._exit_code()
        return "" if code is None else describe_exit(code)

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._handle)

    def _exit_code(self) -> int | None:
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            result = os.waitid(os.P_PIDFD, self._handle, options)
            if result is None:
                return None
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        info = bytearray(_INFO_BYTES)
        struct.pack_into("Q", info, 0, _WANT_EXIT)
        try:
            fcntl.ioctl(self._handle, _GET_INFO, info)
        except OSError:
            return None
        (told,) = struct.unpack_from("Q", info, 0)
        (status,) = struct.unpack_from("i", info, _INFO_BYTES - 4)
        return os.waitstatus_to_exitcode(status) if told & _WANT_EXIT else None


def describe_exit(code: int) -> str:
    """An exit code as `subprocess` gives it, negative for a signal, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
