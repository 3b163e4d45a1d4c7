"""Owns JSON as it comes from strangers: one spelling of each value, no surprises, no deep nests.

Refuses NaN, infinities (1e400 too), integers of more than 20 digits, duplicate keys, bytes that
are not UTF-8, a byte order mark, lone surrogates, and nests deeper than `MAX_DEPTH`.
"""

import json
import math
import re
from typing import Any, NoReturn, cast

from serve_shim.errors import RequestError

MAX_DEPTH = 64
_MAX_INT_CHARS = 20  # -2**63 and 2**64-1 have twenty
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def loads_object(data: bytes) -> dict[str, Any]:
    """Parses one JSON object; RequestError (code `invalid_json`) says what is wrong and where."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise _invalid("it starts with a byte order mark")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_pairs,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise _invalid(f"it must be an object, not {_json_type(value)}")
    _check_depth(value)
    if _SURROGATE_ESCAPE.search(data):
        _check_surrogates(value)
    return cast("dict[str, Any]", value)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _invalid(f"the key `{key[:64]}` stands twice in one object", param=key[:64])
        seen.add(key)
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_INT_CHARS:
        raise _invalid(f"an integer has {len(digits)} digits; {_MAX_INT_CHARS} are read")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _invalid(f"the number {digits[:32]} is larger than a float can hold")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is no JSON value")


def _check_depth(value: object) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _invalid("a string holds a lone surrogate, half of a UTF-16 pair") from None


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "a number"


def _too_deep() -> RequestError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")


def _invalid(reason: str, *, param: str | None = None) -> RequestError:
    return RequestError(
        f"The request body is not valid JSON: {reason}.", param=param, code="invalid_json"
    )
