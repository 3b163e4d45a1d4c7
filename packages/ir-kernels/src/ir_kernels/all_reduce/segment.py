"""Shared-memory segments, the transport of provider `shm`: csrc/shm_segment.h says how they work.

The launcher draws a name, every rank opens it, and the name is gone once all have. A segment serves
either collectives or messages.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ir_core.groups import GroupError
from ir_kernels import library
from ir_kernels.library import kernels

SLOT_BYTES = 256 * 1024
"""Bytes that a rank hands over in one step; a segment holds two slots for each rank."""

_DIRECTORY = Path("/dev/shm")  # noqa: S108  (where Linux keeps them)
_MOST_REASON_BYTES = 900


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that this process takes part in, as one of the ranks of an axis."""

    handle: int

    def close(self) -> None:
        """Leave the group; the other ranks' next collective fails and names this rank."""
        kernels.shm_close.default(self.handle)

    def post(self, message: bytearray) -> None:
        """Post a message of at least one byte and at most a slot, without waiting for anyone.

        It replaces the one before the last, which all its readers must have received.

        Raises:
            GroupError: the segment is broken, or the message does not fit.
        """
        row = torch.frombuffer(message, dtype=torch.uint8)
        try:
            kernels.shm_post.default(self.handle, row)
        except RuntimeError as error:
            raise GroupError(str(error)) from error

    def receive(
        self, first: int, last: int, timeout_s: float, *, late: str = ""
    ) -> list[memoryview]:
        """Copies of the next message of each rank from `first` to before `last`.

        Waits without the GIL, and costs next to nothing while it does.

        Args:
            timeout_s: may be infinite.
            late: what to say of ranks that are late, which then break the segment; if nothing,
                the result is empty.

        Raises:
            GroupError: the segment is broken, or it is now: by a rank that has died or left, or
                by all that are late. Each is named.
        """
        try:
            rows: list[Tensor] = kernels.shm_receive.default(
                self.handle, first, last, timeout_s, late
            )
        except RuntimeError as error:
            raise GroupError(str(error)) from error
        return [row.numpy().data for row in rows]

    def break_off(self, reason: str) -> None:
        """Break the segment for all, from any thread; whoever waits ends with the first reason."""
        kept = reason.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
        try:
            kernels.shm_break.default(self.handle, kept)
        except RuntimeError as error:
            raise GroupError(str(error)) from error


def new_name() -> str:
    """A name that nobody can foresee, for the ranks of one group."""
    return f"/ir-{secrets.token_hex(16)}"


def open_segment(
    name: str,
    axis: str,
    rank: int,
    size: int,
    *,
    slot_bytes: int = SLOT_BYTES,
    open_timeout_s: float = 60.0,
    timeout_s: float = 60.0,
    has_engine: bool = False,
) -> Segment:
    """Open the segment as one of `size` ranks, and wait for the others.

    Args:
        name: from `new_name`, the same for all ranks; all must be on one machine, of one user.
        axis: for messages.
        rank: this process's, from 0; rank 0 makes the segment, readable by this user only.
        size: number of ranks, 2 to 64.
        slot_bytes: larger tensors go in parts; the same for all ranks.
        open_timeout_s: how long to wait for the others now.
        timeout_s: how long a collective waits for a rank.
        has_engine: the last rank is none, but an engine; for messages only.

    Raises:
        GroupError: the library or shared memory is missing, or a rank did not come.
    """
    available, reason = library.availability()
    if not available:
        raise GroupError(f"Axis `{axis}` cannot use shared memory: {reason}.")
    try:
        opened = kernels.shm_open.default(
            name, axis, rank, size, slot_bytes, open_timeout_s, timeout_s, has_engine
        )
    except RuntimeError as error:
        raise GroupError(str(error)) from error
    return Segment(cast(int, opened))


def remove_name(name: str) -> None:
    """Remove a name that ranks left because one never came; nothing happens if it is gone."""
    (_DIRECTORY / name.lstrip("/")).unlink(missing_ok=True)
