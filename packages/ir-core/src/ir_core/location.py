"""Places in source: where a function stands, and which line of the user's code is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

_OWN = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<ir op ")


def location_of(function: Callable[..., Any]) -> str:
    """ "file:line" of a function, through partials and wrappers; its repr if it has no code."""
    code = getattr(unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function below `functools.partial` and `functools.wraps`."""
    while True:
        inner = function.func if isinstance(function, partial) else None
        inner = inner or getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner


def line_of_caller() -> str:
    """ "file:line" of the innermost running line outside this package's core and torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
