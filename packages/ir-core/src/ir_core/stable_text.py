"""Values as text that is the same in every process; says which values have none."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch

from ir_core.implementation import Implementation
from ir_core.source_closure import UnreadableSourceError

_Overload = torch._ops.OpOverload
_Packet = torch._ops.OpOverloadPacket


class StableText:
    """Spells values; what functions, classes and modules become is up to whoever asks."""

    def __init__(
        self,
        function_text: Callable[[FunctionType], str],
        module_text: Callable[[type | ModuleType], str],
    ) -> None:
        self._function_text = function_text
        self._module_text = module_text
        self._open: list[int] = []

    def of(self, name: str, value: Any) -> str:  # noqa: PLR0911
        """The text of a value.

        Raises:
            UnreadableSourceError: it has none, or it contains itself; says so of `name`.
        """
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return f"{type(value).__name__} {value!r}"
            case torch.dtype() | torch.device() | enum.Enum() | _Overload() | _Packet():
                return str(value)
            case FunctionType():
                return self._function_text(value)
            case type() | ModuleType():
                return self._module_text(value)
            case partial():
                return self._join("partial", name, (value.func, value.args, value.keywords))
            case Implementation():
                return self._join("implementation", name, (value.op.name, value.provider, value.fn))
            case _:
                return self._container(name, value)

    def _container(self, name: str, value: Any) -> str:
        if id(value) in self._open:
            raise UnreadableSourceError(f"`{name}` contains itself")
        self._open.append(id(value))
        try:
            return self._elements(name, value)
        finally:
            self._open.pop()

    def _elements(self, name: str, value: Any) -> str:
        if isinstance(value, tuple | list):
            return self._join(type(value).__name__, name, value)
        if isinstance(value, set | frozenset):
            return f"set {sorted(self.of(name, each) for each in value)}"
        if isinstance(value, dict):
            return self._join("dict", name, tuple(value.items()))
        if is_dataclass(value):
            return self._join(type(value).__qualname__, name, _items(name, value))
        raise UnreadableSourceError(
            f"`{name}` is a {type(value).__name__}, which has no stable text"
        )

    def _join(self, kind: str, name: str, values: Any) -> str:
        return f"{kind} ({', '.join(self.of(name, each) for each in values)})"


def _items(name: str, value: Any) -> tuple[tuple[str, Any], ...]:
    try:
        return tuple((each.name, getattr(value, each.name)) for each in fields(value))
    except AttributeError as error:
        raise UnreadableSourceError(f"`{name}` has a field that is not set: {error}") from error
