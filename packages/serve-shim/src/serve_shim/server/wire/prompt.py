"""Owns a prompt as it goes to an engine: ids, and the text to echo."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and their text (None where nobody needs it)."""

    token_ids: Sequence[int]
    text: str | None = None
