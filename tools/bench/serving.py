"""The project's server and others under the same load, one at a time, in turns, round by round.

With neither --config nor --peer it measures the project's server alone. Put what is to be given
to it after a `--`: `… --rounds 1 -- --dtype float32`.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bench.comparison import Row, Start, rows_of, starts_of
from tools.bench.engine import ConfigError, Engine, parse_peer, read_config, select, serve_shim
from tools.bench.load import Load
from tools.bench.machine import describe_machine
from tools.bench.machine_lock import MachineLock
from tools.bench.server_run import EngineError, EngineRun, measure
from tools.bench.table import format_table, number

_ROW_HEAD = (
    "group",
    "streams",
    "engine",
    "out tok/s",
    "to best peer",
    "stream tok/s",
    "TTFT p50 / p99 ms",
    "ITL p50 / p99 ms",
    "other CPUs",
    "errors",
)
_START_HEAD = ("engine", "ready s", "1st TTFT s", "peak RSS MiB")


@dataclass(frozen=True, slots=True)
class _Results:
    """Runs of each engine, and why one has no more of them."""

    runs: dict[str, list[EngineRun]]
    failures: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and write the JSON; 1 if an engine failed or answered errors."""
    options = _parser().parse_args(arguments)
    try:
        load, engines = _plan(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    results = _Results({engine.name: [] for engine in engines}, {})
    try:
        _measure_in_turns(engines, load, options, results)
    finally:  # what was measured before an interruption is worth keeping
        rows = _report(load, engines, results, options.json)
    return 1 if results.failures or any(row.errors for row in rows) else 0


def format_rows(rows: Sequence[Row]) -> str:
    """The table of the levels, and below it the first error of each row that has one."""
    cells = [
        (
            row.group or "-",
            str(row.streams),
            row.engine,
            number(row.output_tok_s),
            number(row.to_best_peer, 2),
            number(row.stream_tok_s),
            f"{number(row.ttft_ms_p50)} / {number(row.ttft_ms_p99)}",
            f"{number(row.itl_ms_p50)} / {number(row.itl_ms_p99)}",
            number(row.other_cpus, 2),
            str(row.errors),
        )
        for row in rows
    ]
    errors = [
        f"{row.engine}, {row.streams} streams: {row.first_error}" for row in rows if row.first_error
    ]
    return "\n".join([format_table(_ROW_HEAD, cells, text_columns=3), *errors])


def format_starts(starts: Sequence[Start]) -> str:
    """The table of what starting costs."""
    cells = [
        (
            start.engine,
            number(start.ready_s),
            number(start.first_ttft_s, 2),
            number(start.peak_rss_mib, 0),
        )
        for start in starts
    ]
    return format_table(_START_HEAD, cells)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-serving", description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML file: [load] and [[engine]] tables")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another OpenAI-compatible server; {port} in it is filled in (repeatable)",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this engine (repeatable)"
    )
    parser.add_argument("--rounds", type=_positive, default=3)
    parser.add_argument("--streams", type=_streams, help="for example 1,4,16,32")
    parser.add_argument("--max-tokens", type=_positive)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the servers' output there")
    lock = "lock it: shared while a server starts, exclusive while it is under load"
    parser.add_argument("--lock", type=Path, metavar="FILE", help=lock)
    parser.add_argument("ours", nargs="*", metavar="-- OPTION", help="options of our server")
    return parser


def _plan(options: argparse.Namespace) -> tuple[Load, list[Engine]]:
    load, engines = (Load(), []) if options.config is None else read_config(options.config)
    if not any(engine.ours for engine in engines):
        engines.insert(0, serve_shim(*options.ours))
    elif options.ours:
        raise ConfigError(f"{options.config} has its own commands: write {options.ours} there")
    engines += [parse_peer(text) for text in options.peer]
    given = {"streams": options.streams, "max_tokens": options.max_tokens}
    update = {name: value for name, value in given.items() if value is not None}
    return load.model_copy(update=update), select(engines, options.only)


def _measure_in_turns(
    engines: Sequence[Engine], load: Load, options: argparse.Namespace, results: _Results
) -> None:
    """Each engine once a round, each round beginning with another; a failed one is left out."""
    lock = MachineLock(options.lock)
    with tempfile.TemporaryDirectory() as scratch:
        logs: Path = options.logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        for at in range(options.rounds):
            first = at % len(engines)
            for engine in (*engines[first:], *engines[:first]):
                if engine.name in results.failures:
                    continue
                print(f"round {at + 1}: {engine.name}", file=sys.stderr, flush=True)
                try:
                    run = measure(engine, load, logs / f"{engine.name}.log", lock)
                    results.runs[engine.name].append(run)
                except EngineError as error:
                    results.failures[engine.name] = str(error)


def _report(
    load: Load, engines: Sequence[Engine], results: _Results, path: Path | None
) -> list[Row]:
    """Print the tables, write the file if one is asked for, and return the rows."""
    rows, starts = rows_of(engines, results.runs), starts_of(engines, results.runs)
    print(format_rows(rows), format_starts(starts), sep="\n\n", flush=True)
    for failure in results.failures.values():
        print(failure, file=sys.stderr)
    if path is not None:
        data = {
            "machine": describe_machine(),
            "load": load.model_dump(),
            "engines": [engine.model_dump() for engine in engines],
            "rows": [asdict(row) for row in rows],
            "starts": [asdict(start) for start in starts],
            "runs": {name: [asdict(run) for run in runs] for name, runs in results.runs.items()},
            "failures": results.failures,
        }
        path.write_text(json.dumps(data, indent=2) + "\n")
    return rows


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _streams(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


if __name__ == "__main__":
    # As an exception it passes through the `with` block that stops the server under measurement.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
