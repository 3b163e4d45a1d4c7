"""The checks that guards make on one object: what each looks at, and how it is told if it fails.

A check is a JSON list: its kind, and what the object has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from torch import Tensor

from ir_passes.cache.constants import Description
from ir_passes.cache.descriptions import Describer, show

Check = list[Any]
TENSOR_FIELDS = (
    *("type", "dtype", "device", "layout", "requires_grad", "shape", "strides"),
    *("conjugate", "negative", "inference"),
)


def checker(check: Check) -> Callable[[Any, Describer], str | None]:
    """The function that tells what a value is and was, if it is not what a check asks for.

    Raises:
        KeyError: there is no such kind of check.
    """
    kind, *facts = check
    function = _CHECKS[kind]
    return lambda value, describer: function(value, describer, *facts)


def tensor_facts(tensor: Tensor, describer: Describer) -> list[Description]:
    """What is checked of a tensor, in the order of `TENSOR_FIELDS`.

    Raises:
        CannotStoreError: its type has no name.
    """
    return [
        describer.describe(type(tensor)),
        str(tensor.dtype),
        str(tensor.device),
        str(tensor.layout),
        tensor.requires_grad,
        list(tensor.shape),
        list(tensor.stride()),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    ]


def own_names(value: Any) -> Mapping[str, Any]:
    """What an object itself holds, and not its type."""
    names: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    return names


def _is(value: Any, describer: Describer, expected: Description) -> str | None:
    found = describer.describe(value)
    if found == expected:
        return None
    old, new = show(expected), show(found)
    return f"is {new}, was {old}" if old != new else f"is another {new} than it was"


def _has_type(value: Any, describer: Describer, expected: Description) -> str | None:
    found = describer.describe(type(value))
    if found == expected:
        return None
    old, new = show(expected), show(found)
    return f"is a {new}, was a {old}" if old != new else f"is of another type {new} than it was"


def _is_based_on(value: Any, describer: Describer, expected: Description, base: str) -> str | None:
    kind = next((each for each in type(value).__mro__ if each.__name__ == base), None)
    return f"is no {base}" if kind is None else _is(kind(value), describer, expected)


def _has_code(value: Any, describer: Describer, expected: str) -> str | None:
    if not isinstance(value, FunctionType):
        return f"is a {type(value).__qualname__}, was a function"
    return None if describer.code(value.__code__) == expected else "has other code than it had"


def _has_method(value: Any, describer: Describer, name: str, expected: str) -> str | None:
    found = describer.method(type(value), name)
    return None if found == expected else f"has another method `{name}` than it had"


def _has_length(value: Any, describer: Describer, expected: int) -> str | None:
    length = len(value)
    return None if length == expected else f"has length {length}, had {expected}"


def _has_keys(value: Any, describer: Describer, expected: list[Description]) -> str | None:
    found = [describer.describe(each) for each in value]
    if found == expected:
        return None
    old, new = (", ".join(map(show, each)) or "none" for each in (expected, found))
    return f"has the keys {new}; they were {old}"


def _contains(
    value: Any, describer: Describer, expected: Description, is_there: bool
) -> str | None:
    found = any(describer.describe(each) == expected for each in value)
    if found == is_there:
        return None
    return f"contains {show(expected)}" if found else f"no longer contains {show(expected)}"


def _lacks_own(value: Any, _: Describer, name: str) -> str | None:
    is_own = name in own_names(value)
    return f"has an attribute `{name}` of its own, had none" if is_own else None


def _has_attribute(value: Any, _: Describer, name: str, is_there: bool) -> str | None:
    if hasattr(value, name) == is_there:
        return None
    return f"has no attribute `{name}`, had one" if is_there else f"has an attribute `{name}`"


def _is_not_none(value: Any, _: Describer) -> str | None:
    return "is None" if value is None else None


def _is_tensor(value: Any, describer: Describer, *expected: Description) -> str | None:
    if not isinstance(value, Tensor):
        return f"is a {type(value).__qualname__}, was a tensor"
    found = tensor_facts(value, describer)
    for name, new, old in zip(TENSOR_FIELDS, found, expected, strict=True):
        if new != old and not _fits(new, old):
            return f"has {name} {_shown(new)}, had {_shown(old)}"
    return None


def _fits(found: Any, expected: Any) -> bool:
    """Whether sizes agree, where those that vary are None."""
    if not isinstance(expected, list) or None not in expected or len(found) != len(expected):
        return False
    return all(old is None or new == old for new, old in zip(found, expected, strict=True))


def _shown(fact: Any) -> str:
    is_name = isinstance(fact, list) and bool(fact) and isinstance(fact[0], str)
    return show(fact) if is_name else str(fact).replace("None", "any")


_CHECKS: Mapping[str, Callable[..., str | None]] = {
    "type": _has_type,
    "is": _is,
    "based": _is_based_on,
    "code": _has_code,
    "method": _has_method,
    "length": _has_length,
    "keys": _has_keys,
    "contains": _contains,
    "lacks": _lacks_own,
    "attribute": _has_attribute,
    "not none": _is_not_none,
    # Arguments of the call differ from the model's tensors in what is checked of their memory.
    "tensor": _is_tensor,
    "argument": _is_tensor,
}
