"""Paths to the objects that a model's trace looked at: steps from the call's scope, as data.

The first step is a name of the traced function, its arguments and what it closes over, or a module
that is imported. A step is a JSON list: its kind, and what the kind takes.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from torch import nn

from ir_passes.cache.constants import Description, restore_constant, show_constant

Step = list[Any]
Scope = Mapping[str, Any]
"""The names that the traced function sees of its own."""

_CONTAINERS = ("_modules", "_parameters", "_buffers")
_MAKERS: Mapping[str, Callable[..., Callable[[Any], Any]]] = {
    "local": operator.itemgetter,
    "module": lambda name: lambda _: sys.modules[name],
    "attribute": lambda name: lambda value: getattr(value, name),
    "own attribute": lambda name: lambda value: object.__getattribute__(value, name),
    "item": lambda key: operator.itemgetter(restore_constant(key)),
    "list item": lambda key: _caller(list.__getitem__, restore_constant(key)),
    "dict item": lambda key: _caller(dict.__getitem__, restore_constant(key)),
    "key at": lambda index: lambda value: list(dict.keys(value))[index],
    "value at": lambda index: lambda value: dict.__getitem__(value, list(dict.keys(value))[index]),
    "type": lambda: type,
    "names": lambda: vars,
}


def reader(step: Step) -> Callable[[Any], Any]:
    """The function that takes one step, from a value or, as the first step, from a scope.

    Raises:
        KeyError: there is no such kind of step.
        CannotStoreError: it takes a key that cannot be stored.
    """
    kind, *facts = step
    return _MAKERS[kind](*facts)


def called_function(function: Callable[..., Any]) -> FunctionType:
    """The plain function that a call of a module, a method or a function runs.

    Raises:
        TypeError: it runs no Python function.
    """
    target = function.forward if isinstance(function, nn.Module) else function
    plain = getattr(target, "__func__", target)
    if not isinstance(plain, FunctionType):
        raise TypeError(f"`{plain!r}` is no Python function")
    return plain


def call_scope(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Scope, frozenset[str]]:
    """What a call's names stand for, and which of them are arguments of the call.

    Those that remain belong to the model: what a method is bound to, and closed over values.

    Raises:
        TypeError: the arguments do not fit, or there is no Python function.
    """
    target = function.forward if isinstance(function, nn.Module) else function
    plain = called_function(function)
    owner = () if target is plain else (getattr(target, "__self__", None),)
    bound = inspect.signature(plain, follow_wrapped=False).bind(*owner, *args, **kwargs)
    bound.apply_defaults()
    scope: dict[str, Any] = dict(bound.arguments)
    names = frozenset(list(scope)[len(owner) :])
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
    scope |= {name: cell.cell_contents for name, cell in cells}
    return scope, names


def show_path(steps: Iterable[Step]) -> str:
    """A path as a person would write it: `self.layers.0.eps`."""
    text = ""
    hidden = False
    for kind, *facts in steps:
        is_plain = hidden and kind == "item" and isinstance(facts[0], str)
        hidden = (kind == "attribute" and facts[0] in _CONTAINERS) or kind == "names"
        if hidden:
            continue
        if is_plain or kind in ("attribute", "own attribute"):
            text += f".{facts[0]}"
        elif kind in ("local", "module"):
            text = facts[0]
        elif kind == "type":
            text = f"type({text})"
        else:
            text += _subscript(kind, facts[0])
    return text


def _caller(function: Callable[[Any, Any], Any], key: Any) -> Callable[[Any], Any]:
    return lambda value: function(value, key)


def _subscript(kind: str, fact: Description) -> str:
    return f"[{kind} {fact}]" if kind.endswith(" at") else f"[{show_constant(fact)}]"
