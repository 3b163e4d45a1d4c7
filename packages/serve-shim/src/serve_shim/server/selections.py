"""Owns the one reading of which implementations have run; metrics and `/debug/ir` both use it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir_core import ExecutedSelection


def executed_selections() -> "tuple[ExecutedSelection, ...]":
    """A row for each distinct selection that has run since the process began."""
    import ir_core as ir  # noqa: PLC0415 - brings torch, which answering probes does not need

    return ir.selections()
