"""Owns what must be so in a rank's process before torch is imported; refuses to import it before.

The supervisor makes one on each rank and calls its methods by name, all on one thread.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
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

    `address` is the node's, to which the rank's ports are bound.
    """

    settings: Settings
    place: int
    num_neighbours: int
    address: str


class Rank:
    """Rank `rank` of `num_ranks`; `progress` tells how far a call has come."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._cores: tuple[int, ...] = ()
        self._session: RankSession | None = None
        self.progress = (0, 0)

    def prepare(self, plans: Sequence[RankPlan]) -> None:
        """Set threads, limits and switches of this process; `plans` are all ranks', in order."""
        plan = plans[self._rank]
        configure_logging(plan.settings.log_level.value, plan.settings.log_format)
        threads = plan.settings.threads or max(1, count_cores() // plan.num_neighbours)
        interface = interface_of(plan.address)
        prepare_rank(plan.settings, os.environ, threads=threads, interface=interface)
        # It imports torch.
        from serve_shim.models.shard import Shard  # noqa: PLC0415
        from serve_shim.ranks.rank_session import RankSession  # noqa: PLC0415

        shard = Shard(self._rank, self._num_ranks)
        self._session = RankSession(plan.settings, shard, threads, self._note)
        self._cores = _cores(plan)

    def run(self, method: str, *arguments: Any) -> Any:
        """Call a method of the session."""
        self.progress = (0, 0)
        return getattr(self._session, method)(*arguments)

    def pin(self) -> None:
        """Keep this thread, and those that it starts, on the rank's cores.

        Two ranks on one core while another idles cost a step three times its time.
        """
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def _note(self, done: int, total: int) -> None:
        self.progress = (done, total)


def _cores(plan: RankPlan) -> tuple[int, ...]:
    """The rank's share of the node's cores; none where there are not enough, or only a quota."""
    allowed = sorted(os.sched_getaffinity(0))
    share = len(allowed) // plan.num_neighbours
    if share == 0 or count_cores() != len(allowed):
        return ()
    return tuple(allowed[plan.place * share : (plan.place + 1) * share])
