"""A channel over shared memory, for an engine and ranks on one machine.

Owns whose turn it is. Every frame of the engine is answered by one of every rank, and the engine
takes all answers before its next frame, so no slot is written to before it was read; what is longer
than a slot goes in parts:

    engine                       rank
    ORDER, a part                TAKEN, if more of the order follows; else
                                 REPLY, a part
    MORE, if any rank has more   REPLY, the next part, or an empty one where nothing is left
"""

import time

from serve_shim.ranks.channel import ChannelError
from serve_shim.ranks.shm_frames import Frame, FramePort, Kind


class ShmEngineEnd:
    """The engine's end, an `EngineEnd`."""

    def __init__(self, name: str, num_ranks: int, *, open_timeout_s: float) -> None:
        """Open the channel and wait for all ranks.

        Args:
            name: from `ir_kernels.all_reduce.segment.new_name`, the same for all; rank 0 makes it,
                and once all have come it is gone.
            num_ranks: 1 to 63.
            open_timeout_s: how long to wait for the ranks.

        Raises:
            ChannelError: shared memory cannot be had, or a rank did not come.
        """
        self._num_ranks = num_ranks
        self._port = FramePort(name, num_ranks, num_ranks, open_timeout_s=open_timeout_s)
        self._rest = memoryview(b"")
        self._is_awaited = False

    def broadcast(self, order: bytes) -> None:
        """Send `order` to all ranks; what does not fit in a slot goes while `collect` waits.

        Raises:
            ChannelError: broken, or the replies to the order before were not collected.
        """
        if self._is_awaited:
            raise ChannelError("An order before the replies to the last; collect them first.")
        self._rest = self._port.post_part(Kind.ORDER, memoryview(order))
        self._is_awaited = True

    def collect(self, timeout_s: float) -> list[bytes]:
        """Every rank's reply to the order, in order of ranks.

        Raises:
            ChannelError: there was no order, or the channel is broken: by a rank that has died,
                left, or not replied within `timeout_s`, all of which are named; or by `fail`.
        """
        if not self._is_awaited:
            raise ChannelError("No order to collect replies to; broadcast one first.")
        try:
            rounds = self._rounds(timeout_s)
        except BaseException:
            # An interrupt, say, would leave the ends out of turn; of reasons the first stays.
            self._port.break_off("the engine gave up while it collected replies")
            raise
        finally:
            self._is_awaited = False
        return [b"".join(frame.data for frame in parts) for parts in zip(*rounds, strict=True)]

    def fail(self, reason: str) -> None:
        """Break the channel for all, from any thread; nothing happens if this end is closed."""
        self._port.break_off(reason)

    def close(self) -> None:
        """Leave; ranks that wait for an order end with an error. Nothing happens if closed."""
        self._port.close()

    def _rounds(self, timeout_s: float) -> list[list[Frame]]:
        deadline = time.monotonic() + timeout_s
        late = f"did not reply within {timeout_s:g} s"

        def answers(kind: Kind) -> list[Frame]:
            return self._port.wait(0, self._num_ranks, kind, deadline=deadline, late=late)

        while self._rest:
            answers(Kind.TAKEN)
            self._rest = self._port.post_part(Kind.ORDER, self._rest)
        rounds = [answers(Kind.REPLY)]
        while any(frame.num_left for frame in rounds[-1]):
            self._port.post(Kind.MORE)
            rounds.append(answers(Kind.REPLY))
        return rounds


class ShmRankEnd:
    """A rank's end, a `RankEnd`."""

    def __init__(self, name: str, rank: int, num_ranks: int, *, open_timeout_s: float) -> None:
        """Open the channel and wait for the others; the arguments are those of `ShmEngineEnd`.

        Raises:
            ChannelError: shared memory cannot be had, or the engine or a rank did not come.
        """
        self._engine = num_ranks
        self._port = FramePort(name, rank, num_ranks, open_timeout_s=open_timeout_s)
        self._owes_reply = False

    def receive(self) -> bytes:
        """The next order, however long it takes to come; an idle wait costs next to nothing.

        Raises:
            ChannelError: broken, or the engine has died or left; or the order before has no reply.
        """
        if self._owes_reply:
            raise ChannelError("The last order has no reply; reply first.")
        frame = self._next(Kind.ORDER, Kind.MORE)
        while frame.kind is Kind.MORE:  # other ranks' replies are longer than this one's
            self._port.post(Kind.REPLY)
            frame = self._next(Kind.ORDER, Kind.MORE)
        parts = [frame.data]
        while frame.num_left:
            self._port.post(Kind.TAKEN)
            frame = self._next(Kind.ORDER)
            parts.append(frame.data)
        self._owes_reply = True
        return b"".join(parts)

    def reply(self, data: bytes) -> None:
        """Reply to the order received last; what does not fit in a slot waits for the engine.

        Receive again after it: a longer reply of another rank needs this one's empty parts.

        Raises:
            ChannelError: broken, or there is no order to reply to.
        """
        if not self._owes_reply:
            raise ChannelError("No order to reply to; receive one first.")
        rest = self._port.post_part(Kind.REPLY, memoryview(data))
        while rest:
            self._next(Kind.MORE)
            rest = self._port.post_part(Kind.REPLY, rest)
        self._owes_reply = False

    def close(self) -> None:
        """Leave; the engine's next wait for this rank fails. Nothing happens if closed."""
        self._port.close()

    def _next(self, *kinds: Kind) -> Frame:
        return self._port.wait(self._engine, self._engine + 1, *kinds)[0]
