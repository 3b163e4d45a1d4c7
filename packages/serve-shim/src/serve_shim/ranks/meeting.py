"""Owns where the ranks of a model meet and how they reach each other; refuses to start any.

Ranks of one machine reach each other through shared memory; gloo is made where they cannot, or
where a priority asks for it, and listens only on the interface of the rank's own address.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from ir_core import groups
from ir_kernels import library
from ir_kernels.all_reduce.segment import open_segment
from serve_shim.errors import RanksError
from serve_shim.models.shard import Shard

AXIS = "tp"
_OPEN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks are told.

    Attributes:
        segment: name of the shared memory for collectives; None where ranks are on several nodes.
        store: where gloo's ranks find each other: a file that is not there yet on one node, host
            and port of rank 0's store on several; None where gloo is not wanted.
        timeout_s: how long a collective waits for a rank.
    """

    segment: str | None
    store: Path | tuple[str, int] | None
    timeout_s: float


def can_share_memory() -> bool:
    """Whether this installation has collectives over shared memory."""
    return library.availability()[0]


class StoreHost:
    """A store for the ranks of several nodes, in the process of rank 0, on its own address only."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0))
        host, port = self._socket.getsockname()[:2]
        self.place: tuple[str, int] = (host, port)
        self._store = distributed.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._socket.detach(),
        )


def join(meeting: Meeting, shard: Shard) -> None:
    """Set this process's group of axis `tp`, once all ranks are there.

    Raises:
        RanksError: no way to the other ranks.
        GroupError: a rank did not come.
    """
    transports: dict[str, Any] = {**_segment(meeting, shard), **_gloo(meeting, shard)}
    if not transports:
        raise RanksError("the ranks have neither shared memory nor gloo to reach each other by")
    group = groups.Group(AXIS, shard.rank, shard.size, transports, meeting.timeout_s)
    groups.set_group(group)


def _segment(meeting: Meeting, shard: Shard) -> Mapping[str, Any]:
    if meeting.segment is None:
        return {}
    opened = open_segment(
        meeting.segment,
        AXIS,
        shard.rank,
        shard.size,
        open_timeout_s=_OPEN_TIMEOUT_S,
        timeout_s=meeting.timeout_s,
    )
    return {"shm": opened}


def _gloo(meeting: Meeting, shard: Shard) -> Mapping[str, Any]:
    if meeting.store is None:
        return {}
    if isinstance(meeting.store, Path):
        store: distributed.Store = distributed.FileStore(str(meeting.store), shard.size)
    else:
        store = distributed.TCPStore(*meeting.store, is_master=False)
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=timedelta(seconds=_OPEN_TIMEOUT_S),
    )
    return {"gloo": distributed.group.WORLD}
