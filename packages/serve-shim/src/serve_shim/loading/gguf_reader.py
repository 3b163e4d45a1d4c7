"""Owns bounded reads of GGUF's header values from a buffer; refuses to read past its end."""

import struct
from collections.abc import Callable
from mmap import mmap

from serve_shim.errors import ModelLoadError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_TEXT = 1 << 24


class GgufReader:
    """A cursor over the header of `path`; little-endian, as GGUF is.

    Raises `ModelLoadError` that names the file, the field and the value that do not fit.
    """

    def __init__(self, data: mmap | bytes, path: str) -> None:
        self.data = data
        self.path = path
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes left after the cursor."""
        return len(self.data) - self.position

    def integer(self, code: str, field: str) -> int:
        """Read one integer with the struct `code`."""
        return self._unpack(f"<{code}", field)[0]

    def integers(self, code: str, count: int, field: str) -> tuple[int, ...]:
        """Read `count` integers with the struct `code`."""
        return self._unpack(f"<{count}{code}", field)

    def count(self, field: str, smallest_item: int) -> int:
        """Read a 64-bit count of items that take at least `smallest_item` bytes each."""
        count = self.integer("Q", field)
        if count * smallest_item > self.remaining:
            raise self.error(field, f"count {count} cannot fit in the {self.remaining} bytes left")
        return count

    def text(self, field: str) -> str:
        """Read a length and that many bytes of UTF-8."""
        length = self.count(field, 1)
        if length > _MAX_TEXT:
            raise self.error(field, f"a string of {length} bytes is longer than {_MAX_TEXT}")
        start = self.position
        self.position += length
        try:
            return self.data[start : self.position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(field, f"not UTF-8 at byte {start + error.start}") from error

    def value(self, field: str) -> object:
        """Read a type and a value of it; arrays become lists."""
        kind = self.integer("I", field)
        return self._array(field) if kind == _ARRAY else self._scalar_reader(kind, field)(field)

    def error(self, field: str, problem: str) -> ModelLoadError:
        """Return the error for `field` of this file."""
        return ModelLoadError(f"{self.path}: {field}: {problem}")

    def _scalar_reader(self, kind: int, field: str) -> Callable[[str], object]:
        if kind == _STRING:
            return self.text
        if kind not in _SCALARS:
            raise self.error(field, f"unknown value type {kind}")
        return lambda name: self.integer(_SCALARS[kind], name)

    def _array(self, field: str) -> list[object]:
        kind = self.integer("I", field)
        if kind == _ARRAY:
            raise self.error(field, "an array of arrays is not supported")
        if kind == _STRING:
            return self._texts(self.count(field, 8), field)
        if kind not in _SCALARS:
            raise self.error(field, f"unknown value type {kind}")
        code = _SCALARS[kind]
        return list(self.integers(code, self.count(field, struct.calcsize(code)), field))

    def _texts(self, count: int, field: str) -> list[object]:
        """Read many strings: a vocabulary has 100 000, so the loop holds no call of our own."""
        data, position, end = self.data, self.position, len(self.data)
        read_length = struct.Struct("<Q").unpack_from
        texts: list[object] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + read_length(data, position)[0]
                if position > end:
                    raise self.error(field, f"string {len(texts)} ends after the file")
                texts.append(data[start:position].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise self.error(field, f"string {len(texts)} is malformed: {error}") from error
        self.position = position
        return texts

    def _unpack(self, layout: str, field: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        if size > self.remaining:
            raise self.error(field, f"the file ends at byte {len(self.data)}, inside this field")
        start = self.position
        self.position += size
        return struct.unpack_from(layout, self.data, start)
