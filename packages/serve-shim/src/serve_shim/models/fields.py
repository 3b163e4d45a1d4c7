"""Owns typed access to a checkpoint's key-value facts; refuses wrong types and ranges."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from serve_shim.errors import ModelLoadError

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    """Values from one file or section, `where` for messages; null counts as absent.

    Every reader raises `ModelLoadError` that names `where`, the key and the value. A reader
    with no default requires the key.
    """

    values: Mapping[str, object]
    where: str

    def has(self, key: str) -> bool:
        """Return whether `key` is there with a value other than null."""
        return self.values.get(key) is not None

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = _LARGEST
    ) -> int:
        """Return an integer in `minimum`..`maximum`; booleans and floats are refused."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "expected an integer")
        if not minimum <= value <= maximum:
            raise self.error(key, f"expected {minimum}..{maximum}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0) -> float:
        """Return a finite float that is greater than `above`."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "expected a number")
        if not math.isfinite(value) or value <= above:
            raise self.error(key, f"expected a finite number above {above:g}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Return true or false; nothing else is taken for one."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "expected a string")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "expected a list of strings")
        return value

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return one or several non-negative integers as a tuple."""
        value = self._value(key, default)
        items = value if isinstance(value, list | tuple) else [value]
        numbers = [item for item in items if type(item) is int and 0 <= item <= _LARGEST]
        if len(numbers) != len(items):
            raise self.error(key, "expected a non-negative integer or a list of them")
        return tuple(numbers)

    def section(self, key: str) -> "Fields":
        """Return the object below `key`."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise self.error(key, "expected an object")
        return Fields(value, f"{self.where} `{key}`")

    def error(self, key: str, problem: str) -> ModelLoadError:
        """Return the error for `key`, its value cut to a readable length."""
        value = repr(self.values.get(key))
        shown = value if len(value) <= 80 else value[:77] + "..."
        return ModelLoadError(f"{self.where}: `{key}` is {shown}; {problem}")

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelLoadError(f"{self.where}: `{key}` is missing")
        return default
