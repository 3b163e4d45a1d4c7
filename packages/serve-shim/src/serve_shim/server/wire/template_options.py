"""Owns what a request may tell the chat template: a few scalars, and never the template itself."""

from collections.abc import Mapping
from typing import Any

from serve_shim.errors import RequestError

ALLOWED_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort", "date_string"})
_MAX_CHARS = 256


def to_template_kwargs(value: object) -> dict[str, Any]:
    """`chat_template_kwargs` as keyword arguments; RequestError names a key that is refused."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong("must be an object")
    for key, item in value.items():
        if key not in ALLOWED_KWARGS:
            allowed = ", ".join(f"`{name}`" for name in sorted(ALLOWED_KWARGS))
            raise _wrong(f"may not set `{str(key)[:64]}`; it may set {allowed}")
        if not isinstance(item, str | int | float | bool | None):
            raise _wrong(f"must give `{key}` a plain value, not an object or a list")
        if isinstance(item, str) and len(item) > _MAX_CHARS:
            raise _wrong(f"gives `{key}` more than {_MAX_CHARS} characters")
    return dict(value)


def _wrong(what: str) -> RequestError:
    return RequestError(f"`chat_template_kwargs` {what}.", param="chat_template_kwargs")
