"""JSON that a person typed: strict, without duplicate keys, with a caret under what is wrong."""

from __future__ import annotations

import json
import re

from serve_shim.settings.source import Source
from serve_shim.settings.wrong_setting import WrongSettingError, show

WIDTH = 60


def parse_json(text: str, source: Source | None = None) -> object:
    """The value that `text` spells. Raises WrongSettingError with the place of the mistake."""
    try:
        return json.loads(text, object_pairs_hook=_to_dict, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise WrongSettingError(_explain(text, error), source) from None
    except (_RefusedJsonError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise WrongSettingError(f"not valid JSON: {reason}", source) from None
    except ValueError as error:  # an integer of too many digits
        raise WrongSettingError(f"not valid JSON: {error}", source) from None


def to_json_or_text(text: str) -> object:
    """The JSON value that `text` spells, or `text` itself where it spells none."""
    try:
        return json.loads(text, object_pairs_hook=_to_dict, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def may_hold_secret(text: str) -> bool:
    """Whether an excerpt of `text` could show an API key."""
    return re.search(r"api[-_]?key", text, re.IGNORECASE) is not None


class _RefusedJsonError(ValueError):
    pass


def _to_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise _RefusedJsonError(f"key {show(key)} stands twice in one object")
        result[key] = value
    return result


def _refuse_constant(name: str) -> object:
    raise _RefusedJsonError(f"`{name}` is no JSON value")


def _explain(text: str, error: json.JSONDecodeError) -> str:
    line = text.splitlines()[error.lineno - 1] if error.lineno <= len(text.splitlines()) else ""
    start = max(0, error.colno - 1 - WIDTH // 2)
    excerpt = line[start : start + WIDTH]
    caret = " " * (error.colno - 1 - start) + "^"
    place = f"line {error.lineno}, column {error.colno}"
    if may_hold_secret(text):
        return f"not valid JSON: {error.msg} at {place}"
    hint = "" if '"' in text else " JSON wants double quotes around names: '{\"mode\": 0}'."
    return f"not valid JSON: {error.msg} at {place}.{hint}\n    {excerpt}\n    {caret}"
