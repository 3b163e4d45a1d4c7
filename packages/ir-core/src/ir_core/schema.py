"""Schemas: an op's parameters and returns, and how a call binds to them. Knows no dispatch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ir_core import torch_binding
from ir_core.errors import ArgumentError, RegistrationError

_SCALAR_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int, torch.SymInt),
    "float": (float, int, torch.SymFloat, torch.SymInt),
    "bool": (bool, torch.SymBool),
    "str": (str,),
    "ScalarType": (torch.dtype,),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its type as torch spells it, and its default if it has one."""

    name: str
    type: str
    default: Any = inspect.Parameter.empty

    @property
    def has_default(self) -> bool:
        """Whether a call may leave the parameter out."""
        return self.default is not inspect.Parameter.empty

    @property
    def is_tensor(self) -> bool:
        """Whether the argument is one tensor (or None, where the type allows it)."""
        return self.type.rstrip("?") == "Tensor"

    @property
    def is_tensor_list(self) -> bool:
        """Whether the argument is a list that holds tensors."""
        return "Tensor" in self.type and not self.is_tensor

    @property
    def is_optional(self) -> bool:
        """Whether None is a valid argument."""
        return self.type.endswith("?")

    def __str__(self) -> str:
        return f"{self.type} {self.name}" + (f"={self.default!r}" if self.has_default else "")


@dataclass(frozen=True, slots=True)
class Schema:
    """What a call of an op looks like; `text` is torch's spelling, marks for writes included."""

    parameters: tuple[Parameter, ...]
    returns: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, function: Callable[..., Any], mutates: Sequence[str] = ()) -> Schema:
        """Read the schema of an annotated function.

        Raises:
            RegistrationError: an annotation that torch cannot express, a keyword-only or a
                positional-only parameter, or a name in `mutates` that is no parameter.
        """
        signature = plain_signature(function)
        unknown = [name for name in mutates if name not in signature.parameters]
        if unknown:
            raise RegistrationError(f"`mutates` names {unknown}, which {_name(function)} lacks.")
        text = torch_binding.infer_schema_text(function, mutates)
        types, returns = torch_binding.parse_schema_text(text)
        parameters = tuple(
            Parameter(name, type_, parameter.default)
            for (name, parameter), type_ in zip(signature.parameters.items(), types, strict=True)
        )
        return cls(parameters, returns, text)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the parameters that are single tensors, in order."""
        return tuple(parameter.name for parameter in self.parameters if parameter.is_tensor)

    @property
    def defaults(self) -> tuple[Any, ...]:
        """Defaults of the parameters that have one, in order."""
        return tuple(parameter.default for parameter in self.parameters if parameter.has_default)

    def bind(self, op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Normalise a call to one value per parameter, in order, defaults filled in.

        Raises:
            ArgumentError: a missing, surplus, repeated or unknown argument.
        """
        if len(args) > len(self.parameters):
            raise ArgumentError(f"`{op}` takes {len(self.parameters)} arguments, got {len(args)}.")
        surplus = set(kwargs) - set(self.names[len(args) :])
        if surplus:
            word = "twice" if surplus & set(self.names) else "which it does not have"
            raise ArgumentError(f"`{op}` got {sorted(surplus)} {word}; it is {op}{self.text}.")
        rest = self.parameters[len(args) :]
        missing = [p.name for p in rest if p.name not in kwargs and not p.has_default]
        if missing:
            raise ArgumentError(f"`{op}` misses {missing}; it is {op}{self.text}.")
        return (*args, *(kwargs.get(p.name, p.default) for p in rest))

    def check_values(self, op: str, values: Sequence[Any]) -> None:
        """Raise ArgumentError, naming op and parameter, for a value of the wrong type."""
        for parameter, value in zip(self.parameters, values, strict=True):
            if not _fits(parameter, value):
                raise ArgumentError(
                    f"`{op}` got {type(value).__name__} for `{parameter.name}`, "
                    f"which is {parameter.type}."
                )

    def difference(self, other: Schema) -> str | None:
        """First difference between two schemas in words, self first; None when they are equal."""
        if self.names != other.names:
            return f"parameters are {list(self.names)}, not {list(other.names)}"
        for mine, theirs in zip(self.parameters, other.parameters, strict=True):
            if mine.type != theirs.type:
                return f"`{mine.name}` is {mine.type}, not {theirs.type}"
            if not same_default(mine.default, theirs.default):
                return f"`{mine.name}` {_default(mine.default)}, not {_default(theirs.default)}"
        if self.returns != other.returns:
            return f"returns are {list(self.returns)}, not {list(other.returns)}"
        return None


def plain_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Signature of a function whose parameters can all be passed by position and by keyword.

    Raises:
        RegistrationError: a keyword-only, positional-only or variadic parameter.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{_name(function)} has no readable signature: {error}") from error
    for parameter in signature.parameters.values():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise RegistrationError(
                f"Parameter `{parameter.name}` of {_name(function)} is {parameter.kind.description}"
                "; an op's parameters must be plain, since graphs carry them by position."
            )
    return signature


def same_default(mine: Any, theirs: Any) -> bool:
    """Whether two defaults are the same value of the same type."""
    return type(mine) is type(theirs) and (mine is theirs or bool(mine == theirs))


def _default(value: Any) -> str:
    return "has no default" if value is inspect.Parameter.empty else f"defaults to {value!r}"


def _name(function: Callable[..., Any]) -> str:
    return f"`{getattr(function, '__name__', repr(function))}`"


def _fits(parameter: Parameter, value: Any) -> bool:
    if value is None:
        return parameter.is_optional
    if parameter.is_tensor:
        return isinstance(value, Tensor)
    if "[" in parameter.type:
        return isinstance(value, list | tuple)
    kind = parameter.type.rstrip("?")
    if isinstance(value, bool):
        return kind not in ("int", "float", "str")
    return isinstance(value, _SCALAR_TYPES.get(kind, object))
