"""Locks of the operating system on cache directories: bounded, and gone with their process.

Without locks, as on some network file systems, nothing is removed and nothing waits for long.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from ir_passes.cache.safe_files import PrivateDirectory
from ir_passes.errors import CacheError

_SHORTEST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.2
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def lock_file(directory: PrivateDirectory, name: str, timeout_s: float) -> Generator[bool]:
    """Hold a lock alone; False if it was not obtained in time.

    Raises CacheError where the file system has no locks, and OSError as it does.
    """
    deadline = time.monotonic() + timeout_s
    descriptor, process = _obtain(directory, name, deadline), os.getpid()
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(descriptor, process)


def holder_of(directory: PrivateDirectory, name: str) -> str:
    """Who took a lock last: process and host, for people."""
    try:
        holder = directory.read(name, limit=1 << 10).decode(errors="replace").strip()
    except OSError:
        holder = ""
    return holder or "an unknown process"


def try_lock(descriptor: int, *, shared: bool, timeout_s: float = 0.0) -> bool:
    """Lock an open file or directory until it is closed; False if that fails in time."""
    try:
        return _lock(descriptor, shared=shared, timeout_s=timeout_s)
    except OSError:
        return False


def _lock(descriptor: int, *, shared: bool, timeout_s: float) -> bool:
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
        else:
            return True


def _obtain(directory: PrivateDirectory, name: str, deadline: float) -> int | None:
    while True:
        descriptor = os.open(name, _FLAGS, 0o600, dir_fd=directory.descriptor)
        try:
            is_locked = _lock_alone(directory, descriptor, deadline)
            if is_locked and _is_still_there(directory, name, descriptor):
                _write_holder(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not is_locked:
            return None


def _lock_alone(directory: PrivateDirectory, descriptor: int, deadline: float) -> bool:
    left = max(0.0, deadline - time.monotonic())
    try:
        return _lock(descriptor, shared=False, timeout_s=left)
    except OSError as error:
        raise CacheError(
            f"{directory.path} is on a file system that gives no locks: {error.strerror}; name a "
            "directory on another one with `--cache-dir`"
        ) from error


def _is_still_there(directory: PrivateDirectory, name: str, descriptor: int) -> bool:
    # Old lock files are removed; one that was waited for may be no file any more.
    try:
        found = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _write_holder(descriptor: int) -> None:
    # For people only: where the disk is full, the lock is one without it.
    with suppress(OSError):
        os.fchmod(descriptor, 0o600)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _release(descriptor: int, process: int) -> None:
    """Release a lock even if a child that was forked meanwhile has the descriptor too."""
    # The child must not release what is its parent's.
    if os.getpid() == process:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
