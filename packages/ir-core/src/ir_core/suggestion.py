"""The sentence that follows an unknown name: the nearest valid one, then all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, valid: Iterable[str]) -> str:
    """Return "did you mean `x`? Valid: `a`, `b`." for a `name` that is none of `valid`."""
    names = sorted(valid)
    if not names:
        return "None is registered."
    near = difflib.get_close_matches(name, names, n=1)
    question = f"did you mean `{near[0]}`? " if near else ""
    return f"{question}Valid: {', '.join(f'`{each}`' for each in names)}."
