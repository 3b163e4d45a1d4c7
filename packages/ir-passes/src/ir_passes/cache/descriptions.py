"""Objects described so that another process can tell whether it has the same ones.

Constants are described by type and value, and modules, types and functions by the name that leads
to them. A function is also described by its code, its defaults and what it closes over, so that a
redefinition shows. What neither a value nor a name identifies cannot be described.
"""

from __future__ import annotations

import enum
import hashlib
import json
import sys
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from ir_passes.cache.code_digest import code_digest
from ir_passes.cache.constants import Description, describe_nested, show_constant
from ir_passes.errors import CannotStoreError


class Describer:
    """Describes objects; what it described once it remembers, so one serves one point in time."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Description]] = {}
        self._methods: dict[tuple[type, str], str | None] = {}

    def describe(self, value: Any) -> Description:
        """The description of an object.

        Raises:
            CannotStoreError: neither a value nor a name identifies it.
        """
        kind: Any = type(value)
        if kind is str or kind is int or kind is float or kind is bool or value is None:
            return describe_nested(value, self.describe)
        if isinstance(value, type | FunctionType):
            known = self._known.get(id(value))
            if known is None:
                # What closes over itself ends here.
                self._known[id(value)] = (value, ["itself"])
                description = (
                    self._type(value) if isinstance(value, type) else self._function(value)
                )
                known = self._known[id(value)] = (value, description)
            return known[1]
        return self._other(value)

    def code(self, code: CodeType) -> str:
        """The digest of a code object."""
        if id(code) not in self._known:
            self._known[id(code)] = (code, code_digest(code))
        return self._known[id(code)][1]

    def method(self, kind: type, name: str) -> str | None:
        """The digest of a method's code, as instances find it; None if there is no such method."""
        if (kind, name) not in self._methods:
            code = code_of(
                next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
            )
            self._methods[kind, name] = None if code is None else self.code(code)
        return self._methods[kind, name]

    def _other(self, value: Any) -> Description:
        ways: tuple[tuple[Any, Callable[[Any], Description]], ...] = (
            (ModuleType, self._module),
            (enum.Enum, self._enum),
            ((BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType), self._builtin),
            (MethodType, self._method),
            ((torch._ops.OpOverload, torch._ops.OpOverloadPacket), self._operator),
        )
        for kind, describe in ways:
            if isinstance(value, kind):
                return describe(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["fields", self.describe(type(value)), *map(self.describe, value)]
        return describe_nested(value, self.describe)

    def _module(self, value: ModuleType) -> Description:
        name = value.__name__
        if sys.modules.get(name) is value or _at("torch.ops", name.split(".")[2:]) is value:
            return ["module", name]
        raise CannotStoreError(f"the module `{name}` is not found under its name")

    def _type(self, value: type) -> Description:
        name = [value.__module__, value.__qualname__]
        if named(*name) is value:
            return ["type", *name]
        # A class made in a function or by a call: its methods are what can be seen of it.
        methods = {
            key: self.code(code)
            for key, each in sorted(vars(value).items())
            if (code := code_of(each)) is not None
        }
        bases = [self.describe(each) for each in value.__bases__]
        return ["class", *name, _digest([bases, methods])]

    def _function(self, value: FunctionType) -> Description:
        name = [value.__module__, value.__qualname__]
        is_torch = (value.__module__ or "").partition(".")[0] in ("torch", *sys.stdlib_module_names)
        if is_torch and named(*name) is value:
            # Torch's and Python's versions say what surrounds it, unless someone has replaced it.
            return ["function", *name, self.code(value.__code__)]
        surroundings = [
            [self.describe(each) for each in value.__defaults__ or ()],
            [[key, self.describe(each)] for key, each in (value.__kwdefaults__ or {}).items()],
            [self._cell(each) for each in value.__closure__ or ()],
        ]
        return ["function", *name, _digest([self.code(value.__code__), surroundings])]

    def _cell(self, cell: CellType) -> Description:
        try:
            contents = cell.cell_contents
        except ValueError:
            return ["empty"]
        return self.describe(contents)

    def _builtin(self, value: Any) -> Description:
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        name = value.__name__
        if isinstance(owner, type | ModuleType) and getattr(owner, name, None) is value:
            return ["builtin", *self.describe(owner)[1:], name]
        for module in (value.__module__, "torch", "torch._C._nn", "torch._C._VariableFunctions"):
            if module and named(module, name) is value:
                return ["builtin", module, name]
        raise CannotStoreError(f"the built-in `{name}` is not found under its name")

    def _operator(self, value: Any) -> Description:
        name = str(value)
        if _at("torch.ops", name.split(".")) is not value:
            raise CannotStoreError(f"the operator `{name}` is not found under its name")
        return ["operator", name]

    def _method(self, value: MethodType) -> Description:
        return ["method", self.describe(value.__self__), self.describe(value.__func__)]

    def _enum(self, value: enum.Enum) -> Description:
        try:
            inner = self.describe(value.value)
        except CannotStoreError:
            inner = ["object"]
        return ["enum", self.describe(type(value)), value.name, inner]


def code_of(attribute: Any) -> CodeType | None:
    """The code of a function or a property, as it stands in a class; None for all else."""
    inner = attribute.fget if isinstance(attribute, property) else attribute
    inner = getattr(inner, "__func__", inner)
    return inner.__code__ if isinstance(inner, FunctionType) else None


def named(module: str | None, qualname: str) -> object:
    """What a module that is imported has under a dotted name; None if there is nothing."""
    if module is None or "<" in qualname:
        return None
    return _at(module, qualname.split("."))


def show(description: Description) -> str:
    """A description for a person."""
    tag: Any
    parts: list[Any]
    tag, *parts = description if isinstance(description, list) else [None]
    match tag:
        case "enum":
            text = f"{parts[0][2]}.{parts[1]}"
        case "type" | "class" | "function":
            text = ".".join(map(str, parts[:2]))
        case "builtin":
            text = ".".join(map(str, parts))
        case "fields":
            text = f"{parts[0][2]}({', '.join(map(show, parts[1:]))})"
        case _:
            text = show_constant(description)
    return text


def _at(module: str, path: list[str]) -> object:
    found: Any = sys.modules.get(module)
    for part in path:
        found = getattr(found, part, None)
    return found if path else None


def _digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
