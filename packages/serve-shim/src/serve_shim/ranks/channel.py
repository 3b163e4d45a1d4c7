"""How the engine and the ranks talk: each order goes to all ranks, and each rank replies to it.

Owns the two ends as Protocols, and their error. Orders and replies are bytes; what they say is not
known here, and neither is what carries them.
"""

from typing import Protocol


class ChannelError(Exception):
    """A channel that does not open, is broken, or is used out of turn; the message says which.

    A broken channel is broken for the engine and all ranks, and stays so.
    """


class EngineEnd(Protocol):
    """The engine's end. All but `fail` are called by one thread at a time."""

    def broadcast(self, order: bytes) -> None:
        """Send `order` to all ranks, without waiting for any.

        Raises:
            ChannelError: broken, or the replies to the order before were not collected.
        """
        ...

    def collect(self, timeout_s: float) -> list[bytes]:
        """Every rank's reply to the order, in order of ranks.

        Raises:
            ChannelError: there was no order, or the channel is broken: by a rank that has died,
                left, or not replied within `timeout_s`, all of which are named; or by `fail`.
        """
        ...

    def fail(self, reason: str) -> None:
        """Break the channel for all, from any thread: whoever waits ends with `reason`."""
        ...

    def close(self) -> None:
        """Leave; ranks that wait for an order end with an error. Nothing happens if closed."""
        ...


class RankEnd(Protocol):
    """A rank's end; one thread at a time calls it."""

    def receive(self) -> bytes:
        """The next order, however long it takes to come.

        Raises:
            ChannelError: broken, or the engine has died or left; or the order before has no reply.
        """
        ...

    def reply(self, data: bytes) -> None:
        """Reply to the order received last.

        Receive again after it: other ranks' replies may be longer, and then need this rank too.

        Raises:
            ChannelError: broken, or there is no order to reply to.
        """
        ...

    def close(self) -> None:
        """Leave; the engine's next wait for this rank fails. Nothing happens if closed."""
        ...
