"""Owns the checks of a safetensors file's header before the library opens it; refuses bad ones."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeGuard

from serve_shim.errors import ModelLoadError

_MAX_HEADER = 100 << 20
FLOAT_BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
INTEGER_BYTES: Mapping[str, int] = {"I8": 1, "I32": 4, "I64": 8}
"""Bytes of an element by its dtype as the format spells it."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of `file`; `dtype` as the format spells it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_safetensors_header(
    path: Path, element_bytes: Mapping[str, int] = FLOAT_BYTES
) -> dict[str, StoredTensor]:
    """Return the tensors of `path`; raises `ModelLoadError` that names file, tensor and value.

    `element_bytes` holds the dtypes that are supported. Checked: the header's length and form,
    dtypes, that each tensor's bytes match its shape, follow each other without gap or overlap and
    end where the file ends.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = _header_length(path, file.read(8), size)
            text = file.read(length)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    entries = _parse(path, text, element_bytes)
    entries.pop("__metadata__", None)
    _check_layout(path, entries, size - 8 - length)
    return {
        name: StoredTensor(path, tuple(entry["shape"]), str(entry["dtype"]))
        for name, entry in entries.items()
    }


def _header_length(path: Path, head: bytes, size: int) -> int:
    if len(head) < 8:
        raise ModelLoadError(f"{path}: {size} bytes are too few for a safetensors file")
    length = struct.unpack("<Q", head)[0]
    if length > min(_MAX_HEADER, size - 8):
        raise ModelLoadError(
            f"{path}: header length {length} does not fit the file's {size} bytes; "
            "it is truncated or no safetensors file"
        )
    return length


def _parse(
    path: Path, text: bytes, element_bytes: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: the header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ModelLoadError(f"{path}: the header is no JSON object")
    for name, entry in entries.items():
        if name != "__metadata__":
            _check_entry(path, name, entry, element_bytes)
    return entries


def _check_entry(path: Path, name: str, entry: object, element_bytes: Mapping[str, int]) -> None:
    where = f"{path}: tensor `{name[:200]}`"
    if not isinstance(entry, dict):
        raise ModelLoadError(f"{where}: the header's entry is no object")
    shape, offsets, dtype = (entry.get(key) for key in ("shape", "data_offsets", "dtype"))
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelLoadError(f"{where}: shape {shape!r:.80} or offsets {offsets!r:.80} malformed")
    if not isinstance(dtype, str) or dtype not in element_bytes:
        raise ModelLoadError(
            f"{where}: dtype {dtype!r:.40} is not supported; supported: {', '.join(element_bytes)}"
        )
    needed = prod(shape) * element_bytes[dtype]
    if offsets[1] - offsets[0] != needed:
        raise ModelLoadError(
            f"{where}: {dtype} {shape} needs {needed} bytes, "
            f"the header gives {offsets[1] - offsets[0]}"
        )


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, entries: dict[str, dict[str, list[int]]], available: int) -> None:
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        if start != end:
            problem = "overlaps the tensor before it" if start < end else "leaves a gap before it"
            raise ModelLoadError(f"{path}: tensor `{name[:200]}` starts at {start}, {problem}")
        end = stop
    if end != available:
        raise ModelLoadError(
            f"{path}: the header describes {end} bytes of weights, the file has {available}; "
            "it is truncated or damaged"
        )
