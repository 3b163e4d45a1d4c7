"""Owns what the server tells about its compiled model: facts for `/debug/ir`, lines for the log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ir_passes.table import align

if TYPE_CHECKING:
    from ir_core.selection import Rejection
    from ir_passes import CompileReport
    from ir_passes.lowering.selections import NodeSelection
    from ir_passes.programs.report import PieceReport, ProgramReport
    from ir_passes.shape_guard import ShapeGuard


class _Choice(NamedTuple):
    """What equal selections of several nodes have in common."""

    op: str
    used: str
    provider: str
    layout: str | None
    rejections: "tuple[Rejection, ...]"


def compiled_facts(report: "CompileReport") -> dict[str, Any]:
    """A report as plain JSON: backend, seconds, cache, programs with their pieces, and guards.

    `nodes` counts the nodes of equal selections, in all uses of their piece.
    """
    return {
        "backend": report.backend,
        "seconds": {name: round(seconds, 3) for name, seconds in report.seconds.items()},
        "cache": {
            "status": report.cache.status.value,
            "directory": report.cache.directory,
            "reasons": list(report.cache.reasons),
        },
        "programs": [_program(each) for each in report.programs],
        "guards": [_guard(each) for each in report.guards],
        "broken_guards": [
            {**_guard(each.guard), "sizes": dict(each.sizes)} for each in report.broken
        ],
    }


def compiled_report(report: "CompileReport") -> str:
    """A line for each program and for each distinct selection in them, with reasons."""
    verb = "Loaded what was compiled" if report.cache.status == "hit" else "Compiled"
    lines = [f"{verb} with {report.backend} in {sum(report.seconds.values()):.2f} s:"]
    chosen: Counter[_Choice] = Counter()
    for program in report.programs:
        distinct = len(program.pieces)
        lines.append(
            f"  token counts {program.sizes}: {program.num_pieces} pieces, {distinct} distinct"
        )
        chosen += _count(_selections(program))
    rows = [("op", "used", "nodes", "rejected")]
    for each, count in sorted(chosen.items(), key=lambda item: item[0][:2]):
        reasons = "; ".join(f"{reject.provider}: {reject.reason}" for reject in each.rejections)
        rows.append((each.op, each.used, str(count), reasons or "-"))
    return "\n".join([*lines, *(f"  {line}" for line in align(rows))])


def plain_rejections(rejections: "Iterable[Rejection]") -> list[dict[str, str]]:
    """Rejections as plain JSON."""
    return [{"provider": each.provider, "reason": each.reason} for each in rejections]


def _program(program: "ProgramReport") -> dict[str, Any]:
    return {
        "first": program.sizes.first,
        "last": program.sizes.last,
        "passes": [
            {
                "name": each.name,
                "requested_by": each.requested_by,
                "effect": each.effect.value,
                "reason": each.reason,
                "changed": each.result.changed,
            }
            for each in program.passes.passes
        ],
        "pieces": [_piece(each) for each in program.pieces],
        "splitting": _plain_counts(_count((row, 1) for row in program.splitting)),
    }


def _piece(piece: "PieceReport") -> dict[str, Any]:
    kept = [row for row in piece.clones if row.is_kept]
    return {
        "name": piece.name,
        "uses": piece.num_uses,
        "seconds": round(piece.seconds, 3),
        "selections": _plain_counts(_count((row, piece.num_uses) for row in piece.selections)),
        "clones_removed": len(piece.clones) - len(kept),
        "clones_kept": [{"node": row.node, "line": row.line, "reason": row.reason} for row in kept],
    }


def _guard(guard: "ShapeGuard") -> dict[str, str]:
    return {
        "expression": guard.expression,
        "cause": guard.cause,
        "location": guard.location,
    }


def _selections(program: "ProgramReport") -> "Iterator[tuple[NodeSelection, int]]":
    for piece in program.pieces:
        yield from ((row, piece.num_uses) for row in piece.selections)
    yield from ((row, 1) for row in program.splitting)


def _count(rows: "Iterable[tuple[NodeSelection, int]]") -> "Counter[_Choice]":
    counts: Counter[_Choice] = Counter()
    for row, uses in rows:
        counts[_Choice(row.op, row.used, row.provider, row.layout, row.rejections)] += uses
    return counts


def _plain_counts(counts: "Counter[_Choice]") -> list[dict[str, Any]]:
    return [
        {
            "op": each.op,
            "provider": each.provider,
            "layout": each.layout,
            "nodes": count,
            "rejections": plain_rejections(each.rejections),
        }
        for each, count in counts.items()
    ]
