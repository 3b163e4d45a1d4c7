"""The Ray that ranks run in: a local one of our own, or a cluster that is joined; and its watch."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ray

from serve_shim.ranks.cluster_address import can_connect
from serve_shim.ranks.process_watch import ProcessWatch

_OBJECT_STORE_BYTES = 80 * 1024 * 1024  # about the least that Ray takes
_OWN_PROCESSES = ("gcs_server", "raylet")
_HEAD_PERIOD_S, _HEAD_TIMEOUT_S, _HEAD_TRIES = 2.0, 3.0, 3


def start_local_ray(directory: Path, num_cores: int, *, uses_gpus: bool) -> None:
    """Start a Ray that has so many cores, and all GPUs or none; its files are below `directory`."""
    ray.init(
        address="local",
        num_cpus=num_cores,
        num_gpus=None if uses_gpus else 0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(directory / "ray"),
    )


def join_ray(address: str) -> None:
    """Become a driver of the cluster at `HOST:PORT`, of which this machine is a node."""
    ray.init(address=address, log_to_driver=False)


class LocalRayWatch:
    """The processes of the local Ray, children of this process."""

    def __init__(self) -> None:
        self._watches = {
            name: ProcessWatch(pid)
            for pid in _children()
            if (name := _command(pid)) in _OWN_PROCESSES
        }

    def ended(self) -> str:
        """Which process of Ray has ended, and how; empty while all live."""
        for name, watch in self._watches.items():
            if watch.is_gone:
                return f"{name} of Ray (pid {watch.pid}) has ended: {watch.how_it_ended()}"
        return ""


class HeadWatch(threading.Thread):
    """Calls `on_loss` with words once the head of a cluster cannot be reached any more.

    Ray itself goes on trying for a minute, then ends the process.
    """

    def __init__(self, address: str, on_loss: Callable[[str], None]) -> None:
        super().__init__(name="head-watch", daemon=True)
        self._address = address
        self._on_loss = on_loss
        self._pause = threading.Event()

    def run(self) -> None:
        """Connect now and then."""
        failures = 0
        while failures < _HEAD_TRIES:
            self._pause.wait(_HEAD_PERIOD_S)
            failures = 0 if can_connect(self._address, _HEAD_TIMEOUT_S) else failures + 1
        self._on_loss(f"the head of Ray at {self._address} cannot be reached any more")


def _children() -> list[int]:
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
