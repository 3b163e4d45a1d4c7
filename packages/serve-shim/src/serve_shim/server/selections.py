"""Owns the one reading of which implementations have run, for metrics, `/debug/ir` and the log."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir_core import ExecutedSelection


def executed_selections() -> "tuple[ExecutedSelection, ...]":
    """A row for each distinct selection that has run since the process began."""
    import ir_core as ir  # noqa: PLC0415 - brings torch, which answering probes does not need

    return ir.selections()


def selections_report() -> str:
    """A line for each distinct selection that has run: op, provider used, rejections and why."""
    import ir_core as ir  # noqa: PLC0415 - as above

    return "\n".join(
        ["Implementations used so far:", *(f"  {x}" for x in ir.format_selections().splitlines())]
    )
