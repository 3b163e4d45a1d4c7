"""The secret that tells this user's own entries from others: a file outside of the cache."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ir_passes.cache.safe_files import make_directories, refuse_link
from ir_passes.errors import UntrustedEntryError

_BYTES = 32
_PURPOSE = b"compile cache entry v1\n"
_MAX_FILE = 4096


@dataclass(frozen=True, slots=True)
class MacKey:
    """A key for HMAC-SHA256 over manifests."""

    secret: bytes = field(repr=False)

    def mac_of(self, content: bytes) -> str:
        """What vouches for the content, in hexadecimal."""
        return hmac.new(self.secret, _PURPOSE + content, hashlib.sha256).hexdigest()

    def vouches(self, content: bytes, mac: object) -> bool:
        """Whether this key made the code of the content."""
        return isinstance(mac, str) and hmac.compare_digest(
            self.mac_of(content).encode(), mac.encode(errors="replace")
        )


def read_key(path: Path, *, outside: Path) -> MacKey:
    """The key in a file.

    FileNotFoundError where there is none; `UntrustedEntryError` for one that others can read or
    write, that is a link, lies in the cache at `outside` or holds no key; OSError as the system.
    """
    _refuse_inside(path, outside)
    text = read_secret(path).strip()
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise UntrustedEntryError(
            f"{path} holds no key of {2 * _BYTES} hexadecimal digits; write one with "
            f"`openssl rand -hex {_BYTES} > {shlex.quote(str(path))}`"
        )
    return MacKey(secret)


def ensure_key(path: Path, *, outside: Path) -> MacKey:
    """The key in a file, made if there is none; errors as of `read_key`."""
    try:
        return read_key(path, outside=outside)
    except FileNotFoundError:
        _create(path)
        return read_key(path, outside=outside)


def read_secret(path: Path) -> bytes:
    """A small file that its owner alone can read; `UntrustedEntryError` for any other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        refuse_link(path, str(path), None, error)
        raise
    with os.fdopen(descriptor, "rb") as file:
        _refuse_readable_by_others(path, os.fstat(descriptor))
        return file.read(_MAX_FILE)


def _refuse_readable_by_others(path: Path, status: os.stat_result) -> None:
    quoted = shlex.quote(str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedEntryError(f"{path} is no regular file; name another file for the key")
    if status.st_uid != os.geteuid():
        raise UntrustedEntryError(
            f"{path} belongs to user {status.st_uid}, and this process is user {os.geteuid()}: "
            f"`chown {os.geteuid()} {quoted}`, or name a key of your own"
        )
    if status.st_mode & 0o077:
        raise UntrustedEntryError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}), so that "
            f"its key is no secret: `chmod 600 {quoted}`"
        )


def _refuse_inside(path: Path, root: Path) -> None:
    place = Path(os.path.realpath(path.parent)) / path.name
    if place.is_relative_to(root):
        raise UntrustedEntryError(
            f"the key {path} lies in the cache {root}, so that whoever copies the one copies the "
            "other: name a file elsewhere with `--cache-key-file`"
        )


def _create(path: Path) -> None:
    make_directories(path.parent)
    draft = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(secrets.token_hex(_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        _link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _link(draft: Path, path: Path) -> None:
    """Give the draft its name unless another process was first: no reader sees half a key."""
    try:
        os.link(draft, path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
