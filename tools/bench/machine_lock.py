"""A file lock by which measurements on a shared machine keep out of each other's way."""

import contextlib
import fcntl
from collections.abc import Generator
from pathlib import Path


class MachineLock:
    """An flock on a file, taken as `flock` the command takes it; no lock at all for None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @contextlib.contextmanager
    def shared(self) -> Generator[None]:
        """Wait until nobody measures, and let nobody begin to within the block."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Wait until nobody works or measures, and let nobody begin to within the block."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, kind: int) -> Generator[None]:
        if self._path is None:
            yield
            return
        with self._path.open("a") as file:
            fcntl.flock(file, kind)
            yield
