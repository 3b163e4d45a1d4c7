"""Shared-memory segments, the transport of provider `shm`: csrc/shm_segment.h says how they work.

The launcher draws a name, every rank opens it, and the name is gone once all have.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ir_core.groups import GroupError
from ir_kernels import library
from ir_kernels.library import kernels

SLOT_BYTES = 256 * 1024
"""Bytes that a rank hands over in one step; a segment holds two slots for each rank."""

_DIRECTORY = Path("/dev/shm")  # noqa: S108  (where Linux keeps them)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that this process takes part in, as one of the ranks of an axis."""

    handle: int

    def close(self) -> None:
        """Leave the group; the other ranks' next collective fails and names this rank."""
        kernels.shm_close.default(self.handle)


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

    Raises:
        GroupError: the library or shared memory is missing, or a rank did not come.
    """
    available, reason = library.availability()
    if not available:
        raise GroupError(f"Axis `{axis}` cannot use shared memory: {reason}.")
    try:
        opened = kernels.shm_open.default(
            name, axis, rank, size, slot_bytes, open_timeout_s, timeout_s
        )
    except RuntimeError as error:
        raise GroupError(str(error)) from error
    return Segment(cast(int, opened))


def remove_name(name: str) -> None:
    """Remove a name that ranks left because one never came; nothing happens if it is gone."""
    (_DIRECTORY / name.lstrip("/")).unlink(missing_ok=True)
