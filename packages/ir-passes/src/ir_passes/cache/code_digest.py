"""Digests of code: what a function does, whatever file or line it stands in."""

from __future__ import annotations

import hashlib
import json
from types import CodeType
from typing import Any

from ir_passes.cache.constants import describe_constant


def code_digest(code: CodeType) -> str:
    """Sha256 of a code object's instructions, constants and names, those of inner code too.

    Files, lines and the function's own name do not count.
    """
    text = json.dumps(_parts(code), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(code: CodeType) -> list[Any]:
    return [
        code.co_code.hex(),
        [_constant(each) for each in code.co_consts],
        [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars],
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        code.co_exceptiontable.hex(),
    ]


def _constant(value: Any) -> Any:
    return ["code", _parts(value)] if isinstance(value, CodeType) else describe_constant(value)
