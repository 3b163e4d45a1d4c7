"""Constants as JSON, exactly: their type is part of it, and floats keep every bit.

A description is a JSON value, and two constants are alike if their descriptions are equal. It is
`None`, an integer or a string for these, and a list that starts with a tag for all others; booleans
have a tag because Python takes them for integers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch

from ir_passes.errors import CannotStoreError

Description = Any
"""A JSON value."""


def describe_constant(value: object) -> Description:
    """The description of a constant that needs no name to be found.

    Raises:
        CannotStoreError: it is none, or something inside it is none.
    """
    return describe_nested(value, describe_constant)


def describe_nested(value: Any, describe: Callable[[Any], Description]) -> Description:
    """The description of a constant whose elements `describe` describes.

    Raises:
        CannotStoreError: its type is not that of a constant.
    """
    kind: Any = type(value)
    if kind is str or kind is int or value is None:
        return value
    if kind in _ATOMS:
        tag, spell = _ATOMS[kind]
        return [tag, *spell(value)]
    if kind in _PARTS:
        return [_PARTS[kind], *map(describe, value)]
    if kind in (set, frozenset):
        return [kind.__name__, *sorted(map(describe, value), key=json.dumps)]
    if kind.__module__ == "numpy" and hasattr(value, "tobytes") and value.ndim == 0:
        return ["numpy", str(value.dtype), value.tobytes().hex()]
    raise CannotStoreError(f"a {kind.__module__}.{kind.__qualname__} is not a constant")


def restore_constant(description: Description) -> Any:
    """The constant that can be the key of a container.

    Raises:
        CannotStoreError: the description is of another kind of value.
    """
    if description is None or isinstance(description, str | int):
        return description
    tag, *parts = description
    if tag in _RESTORE:
        return _RESTORE[tag](parts)
    raise CannotStoreError(f"{show_constant(description)} is no key that can be stored")


def show_constant(description: Description) -> str:
    """A constant's description as Python would print it."""
    if not isinstance(description, list):
        return repr(description)
    tag, *parts = description
    if tag in _RESTORE:
        return repr(_RESTORE[tag](parts))
    if tag in ("tuple", "size"):
        return f"({', '.join(map(show_constant, parts))})"
    if tag == "list":
        return f"[{', '.join(map(show_constant, parts))}]"
    if tag in ("dtype", "device", "layout", "memory format"):
        return str(parts[0])
    return " ".join(str(each) for each in description)


def _limits(value: Any) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


_PARTS = {tuple: "tuple", list: "list", torch.Size: "size", type({}.keys()): "keys"}
_ATOMS: dict[Any, tuple[str, Callable[[Any], list[Any]]]] = {
    bool: ("truth", lambda value: [int(value)]),
    slice: ("slice", lambda value: [describe_constant(each) for each in _limits(value)]),
    range: ("range", lambda value: [*_limits(value)]),
    float: ("float", lambda value: [value.hex()]),
    bytes: ("bytes", lambda value: [value.hex()]),
    complex: ("complex", lambda value: [value.real.hex(), value.imag.hex()]),
    torch.dtype: ("dtype", lambda value: [str(value)]),
    torch.device: ("device", lambda value: [str(value)]),
    torch.layout: ("layout", lambda value: [str(value)]),
    torch.memory_format: ("memory format", lambda value: [str(value)]),
    EllipsisType: ("ellipsis", lambda _: []),
    type(NotImplemented): ("not implemented", lambda _: []),
}
_RESTORE: dict[str, Callable[[list[Any]], Any]] = {
    "truth": lambda parts: bool(parts[0]),
    "float": lambda parts: float.fromhex(parts[0]),
    "bytes": lambda parts: bytes.fromhex(parts[0]),
    "tuple": lambda parts: tuple(map(restore_constant, parts)),
    "slice": lambda parts: slice(*map(restore_constant, parts)),
    "range": lambda parts: range(*map(restore_constant, parts)),
}
