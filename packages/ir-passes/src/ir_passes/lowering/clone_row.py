"""What became of a clone that lowering put before an in-place implementation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CloneRow:
    """One clone that lowering put in: removed, or kept for a reason ("" where it was removed)."""

    node: str
    line: str
    reason: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the clone is still there."""
        return bool(self.reason)
