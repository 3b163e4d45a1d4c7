"""Frames: what one slot of a channel's shared memory holds. They know nothing of whose turn it is.

A frame is a part of an order or of a reply, or says that one was taken or is wanted.
"""

import math
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, auto, unique
from struct import Struct

from ir_core.groups import GroupError
from ir_kernels import library
from ir_kernels.all_reduce.segment import SLOT_BYTES, open_segment
from serve_shim.ranks.channel import ChannelError

_HEAD = Struct("<BQ")
MOST_BYTES = SLOT_BYTES - _HEAD.size
"""Bytes of an order or a reply that one frame takes."""

# A thread that waits in C runs none of Python's signal handlers.
_LONGEST_WAIT_S = 0.5


@unique
class Kind(IntEnum):
    """What a frame is: the engine sends orders and asks for more, ranks do the rest."""

    ORDER = auto()
    TAKEN = auto()
    REPLY = auto()
    MORE = auto()


@dataclass(frozen=True, slots=True)
class Frame:
    """A part: `num_left` bytes of the same order or reply follow in later frames."""

    kind: Kind
    num_left: int = 0
    data: bytes | memoryview = b""


class FramePort:
    """A participant's place in a segment: posts its frames, and waits for those of others."""

    def __init__(self, name: str, index: int, num_ranks: int, *, open_timeout_s: float) -> None:
        """Open the segment and wait for the others; the engine's index is `num_ranks`.

        Raises:
            ChannelError: the compiled library or shared memory is missing, or one did not come.
        """
        available, reason = library.availability()
        if not available:
            raise ChannelError(f"A channel over shared memory needs ir-kernels: {reason}.")
        try:
            self._segment = open_segment(
                name,
                "channel",
                index,
                num_ranks + 1,
                open_timeout_s=open_timeout_s,
                has_engine=True,
            )
        except GroupError as error:
            raise ChannelError(str(error)) from error

    def post_part(self, kind: Kind, data: memoryview) -> memoryview:
        """Post the first part of `data`; what is left of it."""
        part, rest = data[:MOST_BYTES], data[MOST_BYTES:]
        self.post(kind, len(rest), part)
        return rest

    def post(self, kind: Kind, num_left: int = 0, data: bytes | memoryview = b"") -> None:
        """Post a frame; ChannelError if the channel is broken."""
        message = bytearray(_HEAD.pack(kind, num_left))
        message += data
        try:
            self._segment.post(message)
        except GroupError as error:
            raise ChannelError(str(error)) from error

    def wait(
        self,
        first: int,
        last: int,
        *kinds: Kind,
        deadline: float = math.inf,
        late: str = "did not come",
    ) -> list[Frame]:
        """The next frame, of one of the kinds, of each participant from `first` to before `last`.

        Args:
            deadline: on the monotonic clock.
            late: what is then said of those that are late, for example "did not reply".

        Raises:
            ChannelError: the channel is broken, also by this: one has died, left, is late, or
                sent something else.
        """
        messages: list[memoryview] = []
        while not messages:
            left = max(0.0, deadline - time.monotonic())
            is_last = left <= _LONGEST_WAIT_S
            wait_s = left if is_last else _LONGEST_WAIT_S
            try:
                messages = self._segment.receive(first, last, wait_s, late=late if is_last else "")
            except GroupError as error:
                raise ChannelError(str(error)) from error
        return [self._parsed(message, kinds) for message in messages]

    def break_off(self, reason: str) -> None:
        """Break the channel for all, from any thread; nothing happens if this place is closed."""
        with suppress(GroupError):
            self._segment.break_off(reason)

    def close(self) -> None:
        """Leave; nothing happens if closed."""
        self._segment.close()

    def _parsed(self, message: memoryview, kinds: Collection[Kind]) -> Frame:
        number, num_left = _HEAD.unpack_from(message) if len(message) >= _HEAD.size else (0, 0)
        if number not in kinds:
            wanted = " or ".join(kind.name for kind in kinds)
            reason = f"a frame of kind {number} came where {wanted} was due"
            self.break_off(reason)
            raise ChannelError(f"The channel is broken: {reason}.")
        return Frame(Kind(number), num_left, message[_HEAD.size :])
