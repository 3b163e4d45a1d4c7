"""Locks of the operating system on cache directories: bounded, and gone with their process.

Without locks, as on some network file systems, nothing is removed and nothing waits for long.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager

from ir_passes.cache.safe_files import PrivateDirectory

_SHORTEST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.2
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def lock_file(directory: PrivateDirectory, name: str, timeout_s: float) -> Generator[bool]:
    """Hold a lock alone; False if it was not obtained in time."""
    deadline = time.monotonic() + timeout_s
    descriptor = _obtain(directory, name, deadline)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def holder_of(directory: PrivateDirectory, name: str) -> str:
    """Who took a lock last: process and host, for people."""
    try:
        return directory.read(name, limit=1 << 10).decode(errors="replace").strip()
    except OSError:
        return "an unknown process"


def try_lock(descriptor: int, *, shared: bool, timeout_s: float = 0.0) -> bool:
    """Lock an open file or directory until it is closed; False if that fails in time."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline, wait = time.monotonic() + timeout_s, _SHORTEST_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT_S)
        except OSError:
            return False
        else:
            return True


def _obtain(directory: PrivateDirectory, name: str, deadline: float) -> int | None:
    while True:
        descriptor = os.open(name, _FLAGS, 0o600, dir_fd=directory.descriptor)
        left = max(0.0, deadline - time.monotonic())
        if not try_lock(descriptor, shared=False, timeout_s=left):
            os.close(descriptor)
            return None
        if _is_still_there(directory, name, descriptor):
            os.fchmod(descriptor, 0o600)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)


def _is_still_there(directory: PrivateDirectory, name: str, descriptor: int) -> bool:
    # Old lock files are removed; one that was waited for may be no file any more.
    try:
        found = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
