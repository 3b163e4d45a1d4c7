"""Owns how much memory this process may still take; refuses to reserve any."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be allocated without swapping, within the container's limit if it has one.

    Cached files that nobody used lately count as free: the kernel drops them when asked for more.
    """
    free = _machine_bytes(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        droppable = _field(cgroup / "memory.stat", "inactive_file") or 0
        free = min(free, max(0, limit - used + droppable))
    return free


def _machine_bytes(meminfo: Path) -> int:
    available = _field(meminfo, "MemAvailable:")
    if available is not None:
        return available * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of one field a line; None if there is none."""
    try:
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no file or no number in it ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
