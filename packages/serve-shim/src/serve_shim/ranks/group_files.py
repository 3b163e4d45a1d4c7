"""Owns what a group of ranks leaves outside its processes: a directory, and shared memory."""

import shutil
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it


def shared_memory_prefix(directory: Path) -> str:
    """The beginning of all names in shared memory of the group whose directory this is."""
    return f"ir-{directory.name}-"


def remove_files(directory: Path) -> None:
    """Remove the group's directory, and the names of memory that not all ranks came to."""
    for name in _SHARED_MEMORY.glob(f"{shared_memory_prefix(directory)}*"):
        name.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
