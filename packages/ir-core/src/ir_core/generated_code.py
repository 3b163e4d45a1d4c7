"""Builds one small function from a template, as dataclasses do. Knows nothing of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def build(
    name: str,
    text: str,
    environment: dict[str, Any],
    op: str,
    defaults: tuple[Any, ...] = (),
) -> Callable[..., Any]:
    """Return the function `name` that `text` defines over the names in `environment`.

    `text` is made of identifiers and expressions of this package only, never of user input. The
    op's name shows in tracebacks.
    """
    namespace = dict(environment)
    exec(compile(text, f"<ir op {op}>", "exec"), namespace)  # noqa: S102
    function = namespace[name]
    function.__defaults__ = defaults or None
    return function
