"""Ranks that do what a test tells them; they are imported from this directory."""

import ctypes
import os
import signal
import threading
import time

from ir_core.groups import CollectiveError
from serve_shim.errors import ModelLoadError


class ToyRank:
    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.progress = (0, 0)
        self._thread = threading.get_ident()

    def who(self) -> tuple[int, int, int]:
        return self.rank, self.num_ranks, os.getpid()

    def is_on_its_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def add(self, left: int, right: int) -> int:
        return left + right + self.rank

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def count_slowly(self, total: int) -> None:
        for done in range(total + 1):
            self.progress = (done, total)
            time.sleep(1.2)

    def fail_to_load(self, rank: int) -> None:
        if self.rank == rank:
            raise ModelLoadError("tensor `w` is missing")

    def lose(self, rank: int) -> None:
        """The rank is killed; the others are the first to tell."""
        if self.rank == rank:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        raise CollectiveError(f"rank {rank} is gone")

    def hang(self, rank: int) -> None:
        if self.rank == rank:
            time.sleep(600)

    def miss(self, rank: int) -> None:
        """The rank does not come to a collective, and the others give up."""
        self.hang(rank)
        raise CollectiveError(f"rank {rank} did not come")

    def serve(self) -> None:
        time.sleep(600)

    def hold_the_interpreter(self) -> None:
        """No other thread of the rank runs: `PyDLL` keeps the lock during a call."""
        ctypes.PyDLL(None).sleep(600)

    def serve_briefly(self) -> None:
        return


class FailsOnTheLast:
    def __init__(self, rank: int, num_ranks: int) -> None:
        if rank == num_ranks - 1:
            raise ModelLoadError("there are no weights")


class IsNeverMade:
    def __init__(self, rank: int, num_ranks: int) -> None:
        time.sleep(600)
