"""What was compiled, from what, for which sizes, and why: facts to print, log and keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ir_passes.base import SizeRange
from ir_passes.lowering.clone_row import CloneRow
from ir_passes.lowering.selections import NodeSelection, count_by_provider
from ir_passes.report import PipelineReport, format_report
from ir_passes.shape_guard import BrokenGuard, ShapeGuard
from ir_passes.table import align


@dataclass(frozen=True, slots=True)
class PieceReport:
    """One distinct piece: how often it occurs, what it cost and what became of its ops."""

    name: str
    num_uses: int
    seconds: float
    selections: tuple[NodeSelection, ...]
    clones: tuple[CloneRow, ...]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """The program of one range."""

    sizes: SizeRange
    passes: PipelineReport
    pieces: tuple[PieceReport, ...]
    splitting: tuple[NodeSelection, ...]

    @property
    def num_pieces(self) -> int:
        """All pieces, equal ones counted each time."""
        return sum(each.num_uses for each in self.pieces)


class CacheStatus(StrEnum):
    """What the compile cache did for a compilation."""

    OFF = "off"
    HIT = "hit"
    MISS = "miss"
    NOT_STORED = "not stored"


@dataclass(frozen=True, slots=True)
class CacheOutcome:
    """What the compile cache did, and why.

    Attributes:
        status: whether something was loaded.
        directory: the entry that was loaded or written.
        reasons: why nothing fitted, or why nothing could be stored.
    """

    status: CacheStatus
    directory: str | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileReport:
    """Everything about one compiled model.

    Attributes:
        backend: the compiler of the pieces.
        programs: one for each range and static size.
        guards: what was assumed about sizes, with its cause and line of source.
        broken: guards that a served size breaks: those sizes have programs of their own, or the
            policy is to warn.
        seconds: by phase: dynamo, trace, passes, pieces; on a cache hit: load.
        cache: what the compile cache did.
    """

    backend: str
    programs: tuple[ProgramReport, ...]
    guards: tuple[ShapeGuard, ...]
    broken: tuple[BrokenGuard, ...]
    seconds: Mapping[str, float]
    cache: CacheOutcome = CacheOutcome(CacheStatus.OFF)

    @property
    def selected_impls(self) -> dict[str, dict[str, int]]:
        """Number of nodes by op and provider, `{"rms_norm": {"vllm_c": 61}}`, of all programs."""
        return count_by_provider(self._selections())

    def _selections(self) -> Iterator[NodeSelection]:
        for program in self.programs:
            for piece in program.pieces:
                for row in piece.selections:
                    yield from (row for _ in range(piece.num_uses))
            yield from program.splitting


def format_compile_report(report: CompileReport) -> str:
    """Text of a report: phases, ranges, passes, selections with reasons, clones and guards."""
    phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.seconds.items())
    parts = [f"backend {report.backend}: {phases}", *_cache_lines(report.cache)]
    for program in report.programs:
        parts += _program_lines(program)
    parts += [f"guard {each.expression} ({each.cause}, {each.location})" for each in report.guards]
    parts += [f"broken guard: {each}" for each in report.broken]
    return "\n".join(parts)


def _cache_lines(outcome: CacheOutcome) -> Iterator[str]:
    place = "" if outcome.directory is None else f" {outcome.directory}"
    yield f"compile cache: {outcome.status}{place}"
    yield from (f"  {each}" for each in outcome.reasons)


def _program_lines(program: ProgramReport) -> Iterator[str]:
    yield ""
    num_distinct = len(program.pieces)
    yield f"token counts {program.sizes}: {program.num_pieces} pieces, {num_distinct} distinct"
    yield format_report(program.passes)
    rows = [("piece", "uses", "seconds", "ops", "clones removed", "clones kept")]
    for piece in program.pieces:
        kept = sum(row.is_kept for row in piece.clones)
        numbers = (str(piece.num_uses), f"{piece.seconds:.2f}", str(len(piece.selections)))
        rows.append((piece.name, *numbers, str(len(piece.clones) - kept), str(kept)))
    yield from align(rows)
    yield from selection_lines(program)
    for piece in program.pieces:
        for row in piece.clones:
            if row.is_kept:
                yield f"{piece.name}: clone `{row.node}` ({row.line}) stays: {row.reason}"


def selection_lines(program: ProgramReport) -> Iterator[str]:
    """A line for each op of each distinct piece: provider, count, and rejections with reasons."""
    rows = [("op", "used", "nodes", "rejected")]
    found: dict[tuple[str, str, str], int] = {}
    for piece in program.pieces:
        for row in piece.selections:
            key = _selection_key(row)
            found[key] = found.get(key, 0) + piece.num_uses
    for row in program.splitting:
        key = _selection_key(row)
        found[key] = found.get(key, 0) + 1
    rows += [(op, used, str(count), reasons) for (op, used, reasons), count in found.items()]
    yield from align(rows)


def _selection_key(row: NodeSelection) -> tuple[str, str, str]:
    reasons = "; ".join(f"{each.provider}: {each.reason}" for each in row.rejections)
    return row.op, row.used, reasons or "-"
