"""The supervisor's hold on one rank: its actor in Ray, its pulse, its process if that is here."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError

from serve_shim.ranks.launch_options import RankPlace
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.process_watch import ProcessWatch
from serve_shim.ranks.rank_actor import CONTROL, PULSE_S, WORK, stacks_path

_LAST_WORDS = 2000


class RankHandle:
    """One rank; `place` is known once it has answered `locate`."""

    def __init__(self, rank: int, actor: Any, directory: Path) -> None:
        self.rank = rank
        self.place: RankPlace | None = None
        self.watch: ProcessWatch | None = None
        self.progress: tuple[int, int] | None = None
        self._actor = actor
        self._stacks = stacks_path(directory, rank)
        self._stacks_read = 0
        self._pulse: Any = None
        self._pulse_due = 0.0

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.place is None else str(self.place)

    def locate(self) -> Any:
        """A reference to the rank's place."""
        return self._actor.locate.options(concurrency_group=CONTROL).remote()

    def settle(self, place: RankPlace, mark: ProcessMark) -> None:
        """Take note of the place; watch the process if it is on this machine and of our making."""
        self.place = place
        is_here = place.node_id == ray.get_runtime_context().get_node_id()
        if is_here and mark.is_on(place.pid):
            with suppress(ProcessLookupError):
                self.watch = ProcessWatch(place.pid)

    def construct(self, rank_class: str, then: Callable[[Future[Any]], None]) -> None:
        """Make the object, on the thread of all calls."""
        method = self._actor.construct.options(concurrency_group=WORK)
        method.remote(rank_class).future().add_done_callback(then)

    def call(self, method: str, arguments: bytes, then: Callable[[Future[Any]], None]) -> None:
        """Call a method of the object; `then` gets the outcome in a thread of Ray."""
        call = self._actor.call.options(concurrency_group=WORK)
        call.remote(method, arguments).future().add_done_callback(then)

    def take_pulse(self, now: float | None, then: Callable[[Future[Any]], None]) -> None:
        """Ask for a pulse, due `PULSE_S` from `now`, or when the one before was."""
        if now is not None:
            self._pulse_due = now + PULSE_S
        self._pulse = self._actor.pulse.options(concurrency_group=CONTROL).remote()
        self._pulse.future().add_done_callback(then)

    def silent_for(self, now: float) -> float:
        """Seconds since the pulse was due, in no case negative."""
        return max(0.0, now - self._pulse_due)

    def forgive(self, seconds: float) -> None:
        """Let the rank have so much longer for its pulse."""
        self._pulse_due += seconds

    def note_progress(self, value: Any) -> None:
        """Take what the object calls its progress, if it is two integers."""
        if isinstance(value, tuple) and [type(each) for each in value] == [int, int]:
            self.progress = cast("tuple[int, int]", value)

    def state(self) -> str:
        """What the process is doing, in words."""
        return "on another node" if self.watch is None else self.watch.state()

    def ask_for_stacks(self) -> Any:
        """Let the rank dump its stacks; to be handed to `stacks` when it had time to."""
        if self.watch is None:
            return self._actor.stacks.options(concurrency_group=CONTROL).remote()
        with suppress(OSError):
            self._stacks_read = self._stacks.stat().st_size
        self.watch.send(signal.SIGUSR1)
        return None

    def stacks(self, asked: Any, deadline: float) -> str:
        """What came of asking for them, until a moment of the monotonic clock."""
        if asked is None:
            with suppress(OSError), self._stacks.open(errors="replace") as file:
                file.seek(self._stacks_read)
                return file.read()
            return ""
        try:
            return ray.get(asked, timeout=max(0.1, deadline - time.monotonic()))
        except (RayError, GetTimeoutError):
            return ""

    def last_words(self) -> str:
        """The end of what a process of this machine wrote before it ended, if anything."""
        if self.place is None:
            return ""
        logs = self._stacks.parent / "ray" / "session_latest" / "logs"
        texts = [file.read_text(errors="replace") for file in logs.glob(f"*-{self.place.pid}.err")]
        return "".join(texts).strip()[-_LAST_WORDS:]

    def kill(self) -> Any:
        """End the actor; the pulse under way, if any, ends with it."""
        ray.kill(self._actor, no_restart=True)
        return self._pulse
