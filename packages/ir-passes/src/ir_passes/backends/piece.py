"""The form of a compiled piece, which all of the compile stack calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CompiledPiece = Callable[[list[Any]], Sequence[Any]]
"""Takes the piece's inputs as one list, which it may empty, and returns its outputs."""
