"""The kernel bench: timing in turns, copies, and a run on sizes that take no time."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools.bench.contender import Case, Contender, num_copies
from tools.bench.kernel_rows import KernelRow, format_kernel_rows
from tools.bench.kernel_run import run
from tools.bench.kernels import parse
from tools.bench.turns import measure_in_turns


def test_copies_fill_the_footprint() -> None:
    assert [num_copies(size, 1000) for size in (100, 300, 600, 5000)] == [10, 4, 2, 2]


def test_calls_go_round_the_copies_evenly() -> None:
    calls: Counter[int] = Counter()
    contender = Contender("x", [lambda at=at: calls.update([at]) for at in range(7)], 1)
    times = measure_in_turns([contender], 0.0)
    assert len(times) == 1
    assert times[0] > 0
    assert max(calls.values()) - min(calls.values()) <= 1
    assert set(calls) == set(range(7))


def test_footprint_is_that_of_the_largest_rotation() -> None:
    few, many = Contender("a", [list] * 2, 50), Contender("b", [list] * 9, 20)
    assert Case("op", "bf16", "1x1", 1, [few, many]).footprint == 180


def test_case_can_be_cut_to_baselines_and_named_providers() -> None:
    names = [
        Contender("base", [list], 1, is_baseline=True),
        *(Contender(x, [list], 1) for x in "ab"),
    ]
    case = Case("op", "bf16", "1x1", 1, names)
    assert [each.name for each in case.only(["b"]).contenders] == ["base", "b"]
    assert case.only([]) is case


def test_table_marks_the_selected_and_lists_who_declined_once() -> None:
    ran = KernelRow(
        "linear", "bf16", "8x8", 1, "fast", "panel16", True, 2.0, 5.0, 10.0, 0.5, {"F.linear": 1.5}
    )
    declined = KernelRow("linear", "bf16", "8x8", 1, "gpu", reason="no GPU")
    text = format_kernel_rows([ran, declined, declined])
    assert (
        "| 8x8  | 1      | fast *   | panel16 | 2.0 |  5.0 |      10.0 |     50% |       1.50 |"
        in text
    )
    assert text.endswith("\ngpu: no GPU")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--op", "linear", "--sizes", "256x144", "--tokens", "1,3", "--formats", "bf16,w4a16"],
        ["--op", "attention", "--contexts", "17", "--requests", "1,2", "--heads", "4,2,8"],
    ],
    ids=["linear", "attention"],
)
def test_run_times_every_provider_and_reports(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    common = ["--footprint", "1", "--seconds", "0", "--json", str(report)]
    assert run(parse([*arguments, *common])) == 0
    rows = [row for row in json.loads(report.read_text())["rows"] if not row["reason"]]
    assert all(row["microseconds"] > 0 and row["share_of_read"] > 0 for row in rows)
    # Every case has the native meaning, a baseline first, and one row that dispatch would choose.
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(tuple(row[key] for key in ("format", "size", "tokens")), []).append(row)
    for found in cases.values():
        assert found[0]["provider"] in {"F.linear", "sdpa"}
        assert "native" in {row["provider"] for row in found}
        assert len([row for row in found if row["is_selected"]]) == 1
    assert "of read" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--sizes", "8"], ["--tokens", "0"], ["--heads", "3,2,8"], ["--formats", "int3"]],
)
def test_wrong_option_is_refused_by_name(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err
