"""Medians over the rounds of engines measured in turns, and the ratio to the best peer."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tools.bench.engine import Engine
from tools.bench.level_result import LevelResult
from tools.bench.quantiles import median
from tools.bench.server_run import EngineRun

_METRICS = (
    "output_tok_s",
    "stream_tok_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "itl_ms_p50",
    "itl_ms_p99",
    "other_cpus",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One engine at one number of streams, the median of each figure over its rounds.

    `to_best_peer` is `output_tok_s` over that of the fastest engine of the group that is not ours;
    None for those, and where there is none.
    """

    engine: str
    group: str
    streams: int
    rounds: int
    requests: int
    errors: int
    first_error: str | None
    output_tok_s: float
    stream_tok_s: float | None
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    itl_ms_p50: float | None
    itl_ms_p99: float | None
    other_cpus: float | None
    to_best_peer: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """How an engine starts and what it holds, the median over its rounds."""

    engine: str
    ready_s: float
    first_ttft_s: float
    peak_rss_mib: float


def rows_of(engines: Sequence[Engine], runs: Mapping[str, Sequence[EngineRun]]) -> list[Row]:
    """Rows by group, number of streams and engine (as in `engines`), of those that have runs."""
    rows = [
        _row(engine, levels)
        for engine in engines
        for levels in zip(*(run.levels for run in runs.get(engine.name, ())), strict=True)
    ]
    order = {engine.group: at for at, engine in reversed(list(enumerate(engines)))}
    rows.sort(key=lambda row: (order[row.group], row.streams))
    ours = {engine.name for engine in engines if engine.ours}
    peers = [row for row in rows if row.engine not in ours]
    return [_with_ratio(row, peers) if row.engine in ours else row for row in rows]


def starts_of(engines: Sequence[Engine], runs: Mapping[str, Sequence[EngineRun]]) -> list[Start]:
    """How each engine that has runs starts."""
    return [_start(engine.name, runs[engine.name]) for engine in engines if runs.get(engine.name)]


def _row(engine: Engine, levels: Sequence[LevelResult]) -> Row:
    errors = [level.first_error for level in levels if level.first_error is not None]
    figures: dict[str, Any] = {
        name: median([getattr(level, name) for level in levels]) for name in _METRICS
    }
    return Row(
        engine=engine.name,
        group=engine.group,
        streams=levels[0].streams,
        rounds=len(levels),
        requests=sum(level.requests for level in levels),
        errors=sum(level.errors for level in levels),
        first_error=errors[0] if errors else None,
        **figures,
    )


def _with_ratio(row: Row, peers: Sequence[Row]) -> Row:
    rates = [
        peer.output_tok_s
        for peer in peers
        if (peer.group, peer.streams) == (row.group, row.streams) and peer.output_tok_s > 0
    ]
    return replace(row, to_best_peer=row.output_tok_s / max(rates)) if rates else row


def _start(name: str, runs: Sequence[EngineRun]) -> Start:
    return Start(
        engine=name,
        ready_s=statistics.median(run.ready_s for run in runs),
        first_ttft_s=statistics.median(run.first_ttft_s for run in runs),
        peak_rss_mib=statistics.median(run.peak_rss_bytes for run in runs) / 2**20,
    )
