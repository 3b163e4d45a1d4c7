"""A channel over Ray's calls, for an engine whose ranks are on several machines."""

from serve_shim.ranks.channel import ChannelError
from serve_shim.ranks.rank_group import RankGroup


class CallEngineEnd:
    """The engine's end, an `EngineEnd`: each order is a call of every rank, each reply its result.

    A millisecond a step, where shared memory takes some ten microseconds.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._order: bytes | None = None

    def broadcast(self, order: bytes) -> None:
        """Keep `order` for `collect`, which calls the ranks."""
        if self._order is not None:
            raise ChannelError("An order before the replies to the last; collect them first.")
        self._order = order

    def collect(self, timeout_s: float) -> list[bytes]:
        """Every rank's reply to the order, in order of ranks.

        Raises:
            ChannelError: there was no order.
            RankFailedError: a rank failed, or took longer than `timeout_s`.
        """
        if self._order is None:
            raise ChannelError("No order to collect replies to; broadcast one first.")
        order, self._order = self._order, None
        return self._group.call("step", order, phase="step", timeout_s=timeout_s)

    def fail(self, reason: str) -> None:
        """Nothing waits but calls, which the group ends when it fails."""

    def close(self) -> None:
        """The group ends the ranks."""
