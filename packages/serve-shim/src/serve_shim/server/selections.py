"""Owns the one reading of which implementations have run, for metrics, `/debug/ir` and the log."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_core import ExecutedSelection
    from ir_core.autotuning.table import Timing


def executed_selections() -> "tuple[ExecutedSelection, ...]":
    """A row for each distinct selection that has run since the process began."""
    import ir_core as ir  # noqa: PLC0415 - brings torch, which answering probes does not need

    return ir.selections()


def tuned_choices() -> list[dict[str, Any]]:
    """What timing has chosen before the server was ready, as plain JSON; it changes no more."""
    import ir_core as ir  # noqa: PLC0415 - as above

    return [
        {
            "op": each.op,
            "signature": each.signature,
            "default": each.default,
            "provider": each.winners,
            "ranges": [
                {"first": part.first, "last": part.last, "provider": part.provider}
                for part in each.ranges
            ],
            "remark": each.remark,
            "microseconds": _microseconds(each.timings),
            "microseconds_as_written": _microseconds(each.as_written),
            "rejections": [
                {"provider": other.provider, "reason": other.reason} for other in each.rejections
            ],
        }
        for each in ir.registry().priorities.tuned.values()
    ]


def selections_report() -> str:
    """A line for each distinct selection that has run: op, provider used, rejections and why."""
    import ir_core as ir  # noqa: PLC0415 - as above

    return "\n".join(
        ["Implementations used so far:", *(f"  {x}" for x in ir.format_selections().splitlines())]
    )


def _microseconds(timings: "Iterable[Timing]") -> dict[str, dict[str, float]]:
    return {
        each.provider: {str(count): time for count, time in each.microseconds.items()}
        for each in timings
    }
