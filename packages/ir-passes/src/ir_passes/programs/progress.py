"""How a compilation tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a phase, how much of it is done and of how much."""


def no_progress(phase: str, done: int, total: int) -> None:
    """Tell nobody."""
