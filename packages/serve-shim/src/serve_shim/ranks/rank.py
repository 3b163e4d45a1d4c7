"""Owns what must be so in a rank's process before torch is imported; refuses to import it before.

The supervisor makes one on each rank and calls its methods by name, all on one thread.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_shim.cli.log import configure_logging
from serve_shim.ranks.network import interface_of
from serve_shim.settings.tree import Settings
from serve_shim.startup import count_cores, prepare_rank

if TYPE_CHECKING:
    from serve_shim.ranks.rank_session import RankSession


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What a rank is told first: settings, without keys, and its place among those of its node.

    `address` is the node's, to which the rank's ports are bound; `directory` the server's, which
    other machines lack; `is_alone` whether no other model can have the node's cores.
    """

    settings: Settings
    place: int
    num_neighbours: int
    address: str
    directory: Path
    is_alone: bool


class Rank:
    """Rank `rank` of `num_ranks`; `progress` tells how far a call has come."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._cores: tuple[int, ...] = ()
        self._session: RankSession | None = None
        self._warnings = _Warnings()
        self.progress = (0, 0)

    def prepare(self, plans: Sequence[RankPlan]) -> None:
        """Set threads, limits and switches of this process; `plans` are all ranks', in order."""
        plan = plans[self._rank]
        settings = plan.settings
        configure_logging(settings.log_level.value, settings.log_format)
        logging.getLogger().addHandler(self._warnings)
        threads = settings.threads or max(1, count_cores() // plan.num_neighbours)
        prepare_rank(
            settings,
            os.environ,
            threads=threads,
            interface=interface_of(plan.address),
            compiler_directory=plan.directory / f"inductor-{self._rank}",
        )
        # It imports torch.
        from serve_shim.models.shard import Shard  # noqa: PLC0415
        from serve_shim.ranks.rank_session import RankSession  # noqa: PLC0415

        shard = Shard(self._rank, self._num_ranks)
        self._session = RankSession(settings, shard, threads, self._note)
        self._cores = _cores(plan, threads)

    def run(self, method: str, *arguments: Any) -> tuple[Any, list[str]]:
        """Call a method of the session: what it returns, and what was warned of meanwhile."""
        self.progress = (0, 0)
        result = getattr(self._session, method)(*arguments)
        return result, self._warnings.take()

    def step(self, order: bytes) -> bytes:
        """Run one step."""
        if self._session is None:
            raise RuntimeError("a step before the rank was prepared")
        return self._session.step(order)

    def pin(self) -> None:
        """Keep all threads of the process on the rank's cores.

        Two ranks on one core while another idles cost a step three times its time.
        """
        if not self._cores:
            return
        for task in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(task), self._cores)

    def _note(self, done: int, total: int) -> None:
        self.progress = (done, total)


class _Warnings(logging.Handler):
    """Keeps what is warned of, for the server's log: a rank's own is lost with it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def take(self) -> list[str]:
        """What was warned of since the last call."""
        texts, self._texts = self._texts, []
        return texts


def _cores(plan: RankPlan, threads: int) -> tuple[int, ...]:
    """The rank's share of the cores; none where it is too small, shared, or only a quota."""
    allowed = sorted(os.sched_getaffinity(0))
    share = len(allowed) // plan.num_neighbours
    if share < threads or count_cores() != len(allowed) or not plan.is_alone:
        return ()
    return tuple(allowed[plan.place * share : (plan.place + 1) * share])
