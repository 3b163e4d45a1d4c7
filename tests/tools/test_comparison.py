"""Figures of a level, medians over rounds, ratios to the best peer, and their table."""

from tools.bench.comparison import rows_of, starts_of
from tools.bench.completion_stream import Completion
from tools.bench.engine import Engine
from tools.bench.level_result import LevelResult, summarize
from tools.bench.server_run import EngineRun
from tools.bench.serving import format_rows, format_starts
from tools.bench.table import format_table

_GOOD = Completion(1.0, (1.5, 1.6, 1.8), 3, 10, "abc")
_BAD = Completion(1.0, error="HTTP 500")


def _engine(name: str, group: str = "", *, ours: bool = False) -> Engine:
    return Engine(name=name, group=group, ours=ours, command=("{port}",))


def _level(rate: float, streams: int = 1) -> LevelResult:
    seconds = 3 / rate
    return summarize(streams, [_GOOD], seconds, 0.0)


def _run(*levels: LevelResult, ready_s: float = 1.0) -> EngineRun:
    return EngineRun(ready_s, 0.5, 3 << 20, levels)


def test_level_counts_good_answers_and_names_the_first_error() -> None:
    level = summarize(2, [_GOOD, _BAD, _GOOD], wall_s=2.0, client_cpu_s=0.1)
    assert (level.requests, level.errors, level.first_error) == (3, 1, "HTTP 500")
    assert (level.output_tokens, level.output_tok_s, level.prompt_tokens) == (6, 3.0, 20)
    assert level.ttft_ms_p50 == 500.0
    assert round(level.itl_ms_p99 or 0) == 200
    assert round(level.stream_tok_s or 0, 3) == round(2 / 0.3, 3)


def test_level_of_errors_alone_has_no_times() -> None:
    level = summarize(1, [_BAD], wall_s=1.0, client_cpu_s=0.0)
    assert (level.output_tok_s, level.ttft_ms_p50, level.itl_ms_p99) == (0.0, None, None)


def test_rows_hold_medians_and_the_ratio_to_the_best_of_the_group() -> None:
    engines = [_engine("ours", "a", ours=True), _engine("slow", "a"), _engine("fast", "a")]
    engines.append(_engine("other", "b"))
    runs = {
        "ours": [_run(_level(10.0)), _run(_level(30.0)), _run(_level(20.0))],
        "slow": [_run(_level(5.0))],
        "fast": [_run(_level(16.0))],
        "other": [_run(_level(99.0))],
    }
    rows = {row.engine: row for row in rows_of(engines, runs)}
    assert round(rows["ours"].output_tok_s, 6) == 20.0
    assert rows["ours"].rounds == 3
    assert round(rows["ours"].to_best_peer or 0, 6) == 1.25
    assert rows["fast"].to_best_peer is None


def test_rows_stand_by_group_and_streams() -> None:
    engines = [_engine("x", "b"), _engine("y", "a"), _engine("z", "b")]
    run = _run(_level(1.0, 1), _level(2.0, 4))
    rows = rows_of(engines, {"x": [run], "y": [run], "z": [run]})
    order = [(row.group, row.streams, row.engine) for row in rows]
    assert order == [
        ("b", 1, "x"),
        ("b", 1, "z"),
        ("b", 4, "x"),
        ("b", 4, "z"),
        ("a", 1, "y"),
        ("a", 4, "y"),
    ]


def test_engine_that_never_ran_has_no_row() -> None:
    engines = [_engine("ours", ours=True), _engine("gone")]
    runs = {"ours": [_run(_level(10.0))], "gone": []}
    assert [row.to_best_peer for row in rows_of(engines, runs)] == [None]
    assert [start.engine for start in starts_of(engines, runs)] == ["ours"]


def test_tables_show_the_figures_and_the_errors() -> None:
    level = summarize(4, [_GOOD, _BAD], wall_s=1.5, client_cpu_s=0.0)
    engines = [_engine("ours", ours=True)]
    runs = {"ours": [_run(level, ready_s=2.0)]}
    text = format_rows(rows_of(engines, runs))
    assert "| -     | 4       | ours   |       2.0 |" in text
    assert text.endswith("ours, 4 streams: HTTP 500")
    assert "| ours   |     2.0 |       0.50 |            3 |" in format_starts(
        starts_of(engines, runs)
    )


def test_table_pads_columns_to_their_widest_cell() -> None:
    text = format_table(("name", "us"), [("a", "1.5"), ("longer", "10.25")])
    assert text == "\n".join(
        [
            "| name   |    us |",
            "|--------|------:|",
            "| a      |   1.5 |",
            "| longer | 10.25 |",
        ]
    )
