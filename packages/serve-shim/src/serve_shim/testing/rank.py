"""One rank: sets the process's groups, then calls the function. Lives in an actor's process."""

import faulthandler
import os
import signal
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

AXIS = "tp"
_START_TIMEOUT_S = 60.0
_SLOT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank a process is, and where it meets the others."""

    rank: int
    size: int
    segment_name: str
    directory: Path
    collective_timeout_s: float

    @property
    def stacks(self) -> Path:
        """Where the rank's stacks go when it is told to dump them."""
        return self.directory / f"stacks-{self.rank}"


class Rank:
    """A plain class, which the driver makes an actor of."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stacks = place.stacks.open("w")
        # In C, so that it works while a thread is stuck in C.
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)

    def start(self) -> int:
        """Join the other ranks in gloo and in shared memory; the process's id."""
        import torch  # noqa: PLC0415  (the driver, which knows this class, needs none of it)
        from torch import distributed  # noqa: PLC0415

        from ir_core import groups  # noqa: PLC0415

        place = self._place
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.size))
        store = distributed.FileStore(str(place.directory / "store"), place.size)
        distributed.init_process_group(
            "gloo",
            store=store,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=max(_START_TIMEOUT_S, place.collective_timeout_s)),
        )
        transports: dict[str, Any] = {"gloo": distributed.group.WORLD, **self._segment()}
        groups.set_group(
            groups.Group(AXIS, place.rank, place.size, transports, place.collective_timeout_s)
        )
        return os.getpid()

    def run(self, call: bytes) -> tuple[bytes | None, str, bytes | None]:
        """Call the pickled function: its pickled result, or a traceback and the exception."""
        from ray import cloudpickle  # noqa: PLC0415

        try:
            function, arguments = cloudpickle.loads(call)
            return cloudpickle.dumps(function(*arguments)), "", None
        except BaseException as error:
            text = traceback.format_exc()
            try:
                return None, text, cloudpickle.dumps(error)
            except Exception:
                return None, text, None

    def _segment(self) -> dict[str, Any]:
        from ir_kernels import library  # noqa: PLC0415
        from ir_kernels.all_reduce.segment import open_segment  # noqa: PLC0415

        place = self._place
        if place.size == 1 or not library.availability()[0]:
            return {}
        opened = open_segment(
            place.segment_name,
            AXIS,
            place.rank,
            place.size,
            slot_bytes=_SLOT_BYTES,
            open_timeout_s=_START_TIMEOUT_S,
            timeout_s=place.collective_timeout_s,
        )
        return {"shm": opened}
