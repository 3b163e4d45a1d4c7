"""Pydantic's errors in our words: which setting, which source, what was wanted.

Values are cut short; those of secrets are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from serve_shim.settings.schema import Leaf, settings_schema, walk
from serve_shim.settings.source import Path, Source, source_at
from serve_shim.settings.tree import Settings
from serve_shim.settings.wrong_setting import WrongSettingError, nearest, show

_WORDS = {
    "int_parsing": "wants an integer",
    "int_type": "wants an integer",
    "int_from_float": "wants an integer",
    "float_parsing": "wants a number",
    "float_type": "wants a number",
    "finite_number": "wants a finite number",
    "bool_parsing": "wants true or false",
    "bool_type": "wants true or false",
    "string_type": "wants text; put it in quotes",
    "tuple_type": "wants a list",
    "byte_size": "wants a size such as 512MiB",
    "byte_size_unit": "wants a size such as 512MiB",
    "path_type": "wants a path",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "value_error": "{error}",
}


def explain(
    error: ValidationError, provenance: Mapping[Path, Source]
) -> Iterator[WrongSettingError]:
    """One problem per error, with the source of the value it is about."""
    secrets = {
        n.path for n in walk(settings_schema(Settings)) if isinstance(n, Leaf) and n.is_secret
    }
    for details in error.errors(include_url=False):
        path = _to_path(details, provenance)
        is_told = path in secrets or details["type"] == "value_error"
        got = "" if is_told else f", not {show(details['input'])}"
        name = f"`{'.'.join(path)}`{_item(details)} " if path else ""
        message = f"{name}{_reason(details)}{got}"
        yield WrongSettingError(message, source_at(provenance, path) if path else None, path)


def _to_path(details: ErrorDetails, provenance: Mapping[Path, Source]) -> Path:
    """The longest beginning of the error's place that a source gave."""
    names = tuple(str(part) for part in details["loc"])
    prefixes = (names[:end] for end in range(len(names), 0, -1))
    return next((prefix for prefix in prefixes if prefix in provenance), names)


def _item(details: ErrorDetails) -> str:
    index = next((part for part in details["loc"] if isinstance(part, int)), None)
    return "" if index is None else f" item {index + 1}"


def _reason(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if "expected" in context:
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        value = details["input"]
        near = nearest(value, choices) if isinstance(value, str) else ""
        return f"must be one of {', '.join(choices)}{_aside(near)}"
    words = _WORDS.get(details["type"])
    return words.format(**context) if words else f"is wrong: {details['msg']}"


def _aside(hint: str) -> str:
    return f" ({hint.strip()})" if hint else ""
