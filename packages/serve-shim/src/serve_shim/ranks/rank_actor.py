"""What runs on a rank: an object that is called by name on one thread, and answers on another."""

import faulthandler
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from serve_shim.errors import ServeShimError
from serve_shim.ranks.launch_options import RankPlace
from serve_shim.ranks.root_cause import ENGINE_EXIT_CODE

PULSE_S = 1.0
WORK, CONTROL = "work", "control"
# They tell that another participant is lost. Looked up among the modules that were imported:
# an error of a class that was not cannot have been raised.
_CONSEQUENCES = (
    ("ir_core.groups", "CollectiveError"),
    ("serve_shim.ranks.channel", "ChannelError"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """What a call returned, pickled."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Raised:
    """What a call raised, in words: an exception need not survive pickling."""

    type_name: str
    message: str
    trace: str
    exit_code: int
    is_consequence: bool


def stacks_path(directory: Path, rank: int) -> Path:
    """Where a rank of this machine dumps its stacks on SIGUSR1."""
    return directory / f"stacks-{rank}"


class RankActor:
    """A plain class, which the supervisor makes an actor of."""

    def __init__(self, rank: int, num_ranks: int, directory: str, working_directory: str) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._object: Any = None
        if Path(directory).is_dir():
            self._stacks = stacks_path(Path(directory), rank).open("w")
            # In C, so that it works while a thread is stuck in C.
            faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        with suppress(OSError):  # another machine need not have it
            os.chdir(working_directory)

    def locate(self) -> RankPlace:
        """Where this rank is."""
        import ray  # noqa: PLC0415  (it is there: this runs in one of its processes)

        from serve_shim.startup import count_cores  # noqa: PLC0415

        return RankPlace(
            self._rank,
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address(),
            socket.gethostname(),
            count_cores(),
        )

    def construct(self, rank_class: str) -> Value | Raised:
        """Import `package.module:Class` and make the object whose methods are called."""
        module, _, name = rank_class.partition(":")

        def make() -> None:
            self._object = getattr(import_module(module), name)(self._rank, self._num_ranks)

        return _guarded(make)

    def call(self, method: str, arguments: bytes) -> Value | Raised:
        """Call a method of the object with the pickled arguments."""

        def call() -> Any:
            return getattr(self._object, method)(*pickle.loads(arguments))  # noqa: S301  (of ours)

        return _guarded(call)

    def pulse(self) -> tuple[int, int] | None:
        """Answer after `PULSE_S` with the object's progress, if it tells any.

        So there is always a call under way, by which Ray notices the end of the process at once.
        """
        time.sleep(PULSE_S)
        return getattr(self._object, "progress", None)

    def stacks(self) -> str:
        """The stacks of all threads."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()


def _guarded(function: Callable[[], Any]) -> Value | Raised:
    try:
        return Value(pickle.dumps(function()))
    except BaseException as error:
        return _in_words(error)


def _in_words(error: BaseException) -> Raised:
    return Raised(
        type(error).__name__,
        _message(error),
        "".join(traceback.format_exception(error)),
        _exit_code(error),
        _is_consequence(error),
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"(its message raised {type(failed).__name__})"


def _exit_code(error: BaseException) -> int:
    return error.exit_code if isinstance(error, ServeShimError) else ENGINE_EXIT_CODE


def _is_consequence(error: BaseException | None) -> bool:
    """Whether the error, or what it was raised from, tells that another participant is lost."""
    known = tuple(
        getattr(sys.modules[module], name)
        for module, name in _CONSEQUENCES
        if module in sys.modules
    )
    while error is not None:
        if isinstance(error, known):
            return True
        error = error.__cause__
    return False
