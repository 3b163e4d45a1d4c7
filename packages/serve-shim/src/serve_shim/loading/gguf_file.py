"""Owns one GGUF file: its metadata, its tensor table and rows of its tensors as float32.

Refuses whatever does not add up: bad magic, other versions, counts, offsets, overlaps, types.
"""

import mmap
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from serve_shim.errors import ModelLoadError
from serve_shim.loading.gguf_quants import FORMATS, UNSUPPORTED_NAMES, BlockFormat
from serve_shim.loading.gguf_reader import GgufReader
from serve_shim.models.fields import Fields

_MAGIC = b"GGUF"
_SMALLEST_PAIR, _SMALLEST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the table: `shape` is slowest dimension first, `start` a byte of the file."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int

    @property
    def num_rows(self) -> int:
        """Rows along the fastest dimension; one for a vector."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of `shape[-1]` values."""
        return self.shape[-1] // self.format.values * self.format.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_rows * self.row_bytes


class GgufFile:
    """A memory-mapped GGUF file of version 2 or 3, header parsed and checked.

    `metadata` gives typed access to the key-value pairs, `tensors` maps name to entry.
    Raises `ModelLoadError` that names the file, the field and the value.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        reader = GgufReader(self._data, str(path))
        num_tensors, num_pairs = _read_preamble(reader)
        self.metadata = Fields(_read_metadata(reader, num_pairs), str(path))
        self.tensors = self._read_tensors(reader, num_tensors)
        self._bytes = torch.frombuffer(self._data, dtype=torch.uint8)
        self.bytes_read = 0

    def read_blocks(
        self, tensor: GgufTensor, start: int, stop: int, columns: slice = slice(None)
    ) -> Tensor:
        """Return rows `start` to `stop`, or some blocks of each: uint8 [num_blocks, block_bytes].

        `columns` counts blocks. All of a row are a view, fewer a copy.
        """
        first = tensor.start + start * tensor.row_bytes
        raw = self._bytes[first : first + (stop - start) * tensor.row_bytes]
        num_bytes = tensor.format.num_bytes
        rows = raw.view(stop - start, tensor.row_bytes // num_bytes, num_bytes)
        blocks = rows[:, columns].reshape(-1, num_bytes)
        self.bytes_read += blocks.numel()
        return blocks

    def read_rows(self, tensor: GgufTensor, start: int, stop: int, out: Tensor) -> None:
        """Expand rows `start` to `stop` into `out`, contiguous float32 [stop - start, row]."""
        blocks = self.read_blocks(tensor, start, stop)
        tensor.format.expand(blocks, out.view(-1, tensor.format.values))

    def _read_tensors(self, reader: GgufReader, count: int) -> dict[str, GgufTensor]:
        entries = [_read_tensor(reader) for _ in range(count)]
        alignment = self.metadata.integer("general.alignment", 32, maximum=1 << 20)
        if alignment & (alignment - 1):
            raise self.metadata.error("general.alignment", "expected a power of two")
        base = -(-reader.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, block, offset in entries:
            field = f"tensor `{name}`"
            if name in tensors:
                raise reader.error(field, "is listed twice")
            if offset % alignment:
                raise reader.error(field, f"offset {offset} is not a multiple of {alignment}")
            tensor = GgufTensor(name, shape, block, base + offset)
            if tensor.start + tensor.num_bytes > len(self._data):
                raise reader.error(
                    field,
                    f"needs bytes up to {tensor.start + tensor.num_bytes}, "
                    f"the file has {len(self._data)}; it is truncated",
                )
            tensors[name] = tensor
        _check_overlaps(reader, tensors)
        return tensors


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # A private writable mapping: torch warns about read-only memory.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError as error:
        raise ModelLoadError(f"{path}: the file is empty") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error


def _read_preamble(reader: GgufReader) -> tuple[int, int]:
    magic = bytes(reader.data[:4])
    if magic != _MAGIC:
        raise reader.error("magic", f"found {magic!r}, expected {_MAGIC!r}; this is no GGUF file")
    reader.position = 4
    version = reader.integer("I", "version")
    if version not in (2, 3):
        hint = "; the file is big-endian" if version and version & 0xFFFF == 0 else ""
        raise reader.error("version", f"found {version}, supported are 2 and 3{hint}")
    num_tensors = reader.count("tensor count", _SMALLEST_TENSOR)
    return num_tensors, reader.count("metadata count", _SMALLEST_PAIR)


def _read_metadata(reader: GgufReader, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(count):
        key = reader.text(f"metadata key {index}")
        if key in metadata:
            raise reader.error(f"metadata `{key}`", "is given twice")
        metadata[key] = reader.value(f"metadata `{key}`")
    return metadata


def _read_tensor(reader: GgufReader) -> tuple[str, tuple[int, ...], BlockFormat, int]:
    name = reader.text("tensor name")
    field = f"tensor `{name}`"
    num_dims = reader.integer("I", field)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise reader.error(field, f"has {num_dims} dimensions, expected 1 to {_MAX_DIMS}")
    shape = reader.integers("Q", num_dims, field)[::-1]
    if not all(0 < size < 1 << 40 for size in shape):
        raise reader.error(field, f"has the impossible shape {list(shape)}")
    block = _find_format(reader, field, reader.integer("I", field))
    if shape[-1] % block.values:
        raise reader.error(
            field, f"rows of {shape[-1]} are no multiple of {block.name}'s {block.values} values"
        )
    return name, shape, block, reader.integer("Q", field)


def _find_format(reader: GgufReader, field: str, kind: int) -> BlockFormat:
    if kind in FORMATS:
        return FORMATS[kind]
    name = UNSUPPORTED_NAMES.get(kind, str(kind))
    supported = ", ".join(block.name for block in FORMATS.values())
    raise reader.error(field, f"type {name} is not supported; supported: {supported}")


def _check_overlaps(reader: GgufReader, tensors: dict[str, GgufTensor]) -> None:
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.start)
    for before, after in pairwise(ordered):
        if before.start + before.num_bytes > after.start:
            raise reader.error(
                f"tensor `{after.name}`",
                f"starts at {after.start}, inside tensor `{before.name}` "
                f"({before.start} to {before.start + before.num_bytes})",
            )
