"""The file of a bundle: a compressed tar archive with an index, then each file by its digest.

The reader expects the very members that the index implies, in its order: links, devices, other
names, repeated or missing ones are all the same to it, not the next member.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final

from ir_passes.cache.bundle_index import MAX_INDEX_BYTES, BundleIndex, parse_index
from ir_passes.errors import BundleError

MAX_CONTENT_BYTES: Final = 16 << 30
MAX_RATIO: Final = 200

_INDEX = "bundle.json"
_FILES = "files/"
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_SLACK = 1 << 20


class ArchiveWriter:
    """Writes a bundle; equal content gives equal bytes."""

    def __init__(self, file: BinaryIO, index: BundleIndex) -> None:
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6)
        self._add(_INDEX, index.to_bytes())

    def add(self, sha256: str, content: bytes) -> None:
        """Append a file, in the order of the index."""
        self._add(_FILES + sha256, content)

    def close(self) -> None:
        """Write the end; the file below stays open."""
        self._gzip.write(bytes(2 * _BLOCK))
        self._gzip.close()

    def _add(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o600
        self._gzip.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._gzip.write(content)
        self._gzip.write(bytes(_padding(len(content))))


class ArchiveReader:
    """Reads a bundle once, from a file that nobody else can change; `BundleError` says why not."""

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._gzip = gzip.GzipFile(fileobj=file, mode="rb")
        self._left = min(MAX_CONTENT_BYTES, MAX_RATIO * num_bytes + _SLACK)
        size = self._read_header(_INDEX)
        if size > MAX_INDEX_BYTES:
            raise BundleError(f"has an index of {size} bytes, over {MAX_INDEX_BYTES}")
        self.index = parse_index(self._take_padded(size))
        if sum(self.index.sizes.values()) > self._left:
            raise BundleError("is a small file that claims to hold far more than one can")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """All files by digest, each verified, then the end of the archive."""
        for sha256, size in self.index.sizes.items():
            found = self._read_header(_FILES + sha256)
            if found != size:
                raise BundleError(f"has {found} bytes for {sha256}, its index says {size}")
            content = self._take_padded(size)
            if hashlib.sha256(content).hexdigest() != sha256:
                raise BundleError(f"has a file that is not the one of its digest {sha256}")
            yield sha256, content
        self._read_end()

    def _read_header(self, expected: str) -> int:
        try:
            info = tarfile.TarInfo.frombuf(self._take(_BLOCK), "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise BundleError(f"has no member `{expected}` where it should be") from error
        if info.name != expected or info.type != tarfile.REGTYPE:
            kind = "" if info.type == tarfile.REGTYPE else f" of type {info.type!r}"
            raise BundleError(
                f"has the member `{info.name[:200]}`{kind} where the file `{expected}` should be"
            )
        return info.size

    def _read_end(self) -> None:
        while rest := self._read(_CHUNK):
            if rest.strip(b"\0"):
                raise BundleError("goes on after its end")

    def _take_padded(self, size: int) -> bytes:
        content = self._take(size)
        self._take(_padding(size))
        return content

    def _take(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            chunk = self._read(min(_CHUNK, size - len(content)))
            if not chunk:
                raise BundleError("is truncated")
            content += chunk
        return bytes(content)

    def _read(self, size: int) -> bytes:
        try:
            chunk = self._gzip.read(size)
        except EOFError as error:
            raise BundleError("is truncated") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BundleError(f"is no bundle, or damaged: {error}") from error
        self._left -= len(chunk)
        if self._left < 0:
            raise BundleError("is a small file that grows far beyond what a bundle can be")
        return chunk


def _padding(size: int) -> int:
    return -size % _BLOCK
