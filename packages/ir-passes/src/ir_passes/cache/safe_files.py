"""Directories and files that only the user of this process can write, reached without a link.

Everything below an open directory is opened by name from its descriptor, and checked on the
descriptor: what was checked is what is read, whatever is renamed meanwhile.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Self

from ir_passes.errors import CorruptEntryError, UntrustedEntryError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe would block an open for ever without O_NONBLOCK.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class PrivateDirectory:
    """An open directory that its owner alone can write; closes at the end of a `with`.

    Methods raise `UntrustedEntryError` for what others could have written and for links, with the
    command that settles it, and OSError as the system does.
    """

    path: Path
    descriptor: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a path; only its last part must not be a link."""
        return cls._open(path, str(path), None)

    def enter(self, name: str) -> PrivateDirectory:
        """Open a directory below this one."""
        return self._open(self.path / name, name, self.descriptor)

    def make(self, name: str) -> PrivateDirectory:
        """Open a directory below this one, made if it is not there."""
        try:
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        except FileExistsError:
            return self.enter(name)
        os.chmod(name, 0o700, dir_fd=self.descriptor)
        self.sync()
        return self.enter(name)

    def descend(
        self, parts: Iterable[str], opened: ExitStack, *, make: bool = False
    ) -> PrivateDirectory:
        """Go down to the last part, making what is not there if asked; `opened` closes them."""
        directory: PrivateDirectory = self
        for part in parts:
            below = directory.make(part) if make else directory.enter(part)
            directory = opened.enter_context(below)
        return directory

    def names(self) -> list[str]:
        """What is in the directory, sorted."""
        return sorted(os.listdir(self.descriptor))

    def read(self, name: str, *, limit: int, size: int | None = None) -> bytes:
        """Read a file, once; `CorruptEntryError` for another size, or one above the limit."""
        path = self.path / name
        try:
            descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        except OSError as error:
            self._refuse_link(name, error)
            raise
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedEntryError(f"{path} is no regular file; remove it")
            refuse_writable_by_others(path, status)
            if size is not None and status.st_size != size:
                raise CorruptEntryError(
                    f"{path} has {status.st_size} bytes, its manifest says {size}"
                )
            if status.st_size > limit:
                raise CorruptEntryError(f"{path} has {status.st_size} bytes, over {limit}")
            return file.read(status.st_size)

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing and reading."""
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=self.descriptor)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "w+b")

    def write(self, name: str, content: bytes) -> None:
        """Write a new file down to the disk."""
        with self.create(name) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def sync(self) -> None:
        """Bring the names in this directory down to the disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _open(cls, path: Path, name: str, parent: int | None) -> Self:
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            refuse_link(path, name, parent, error)
            raise
        try:
            refuse_writable_by_others(path, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def _refuse_link(self, name: str, error: OSError) -> None:
        refuse_link(self.path / name, name, self.descriptor, error)


def open_below(
    root: Path, parts: Iterable[str], opened: ExitStack
) -> tuple[PrivateDirectory, PrivateDirectory]:
    """Open a root and go down to the last part below it; `opened` closes both."""
    top = opened.enter_context(PrivateDirectory.open(root))
    return top, top.descend(parts, opened)


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are not there, closed to others."""
    if path.is_dir():
        return
    make_directories(path.parent)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        return
    path.chmod(0o700)


def refuse_reachable_by_others(root: Path, path: Path) -> None:
    """Raise `UntrustedEntryError` for a path below a root, by which others could have changed it.

    Modes do not matter below a directory that others cannot enter. OSError as the system raises it.
    """
    is_open = True
    for place in accumulate(path.relative_to(root).parts, Path.joinpath, initial=root):
        status = place.lstat()
        refuse_other_owner(place, status)
        if is_open:
            refuse_writable_by_others(place, status)
        is_open = is_open and bool(status.st_mode & (stat.S_IXGRP | stat.S_IXOTH))


def refuse_other_owner(path: Path, status: os.stat_result) -> None:
    """Raise `UntrustedEntryError` for what another user owns."""
    user = os.geteuid()
    if status.st_uid != user:
        raise UntrustedEntryError(
            f"{path} belongs to user {status.st_uid}, and this process is user {user}; if its "
            f"content is yours: `chown -R {user} {shlex.quote(str(path))}`"
        )


def refuse_writable_by_others(path: Path, status: os.stat_result) -> None:
    """Raise `UntrustedEntryError` for what another user owns or may write."""
    refuse_other_owner(path, status)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UntrustedEntryError(
            f"{path} can be written by other users (mode {stat.S_IMODE(status.st_mode):04o}); if "
            f"its content is yours: `chmod -R go-w {shlex.quote(str(path))}`"
        )


def refuse_link(path: Path, name: str, parent: int | None, error: OSError) -> None:
    """Raise `UntrustedEntryError` if an open failed because the name is a symbolic link."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedEntryError(
            f"{path} is a symbolic link, which is not followed here; put what it points to in "
            f"its place, or remove it: `rm {shlex.quote(str(path))}`"
        ) from error
