"""A server's ops are tuned by ranges of rows, which its programs, graphs and tapes are cut at."""

import logging
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoints import make_model
from tuned_starts import settings
from tuned_table import forget, own_table

import ir_core as ir
from ir_core.autotuning import session, tuner
from ir_core.autotuning.decision import Round
from ir_core.autotuning.recorder import RecordedCalls
from ir_passes.programs.report import CacheStatus
from serve_shim.engine.build import build_parts
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.status import StartupStatus
from serve_shim.server.selections import tuned_choices


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def _own_table() -> Generator[None]:
    with own_table():
        yield


def start(*given: Any, **config: Any) -> EngineParts:
    return build_parts(settings(*given, **config), StartupStatus())


class Priced:
    """Rounds of a contest without a clock: norms are faster as native up to 8 tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tuner, "_compete", self)
        monkeypatch.setattr(tuner, "_compiled", lambda names, *_: (dict.fromkeys(names), {}))
        monkeypatch.setattr(tuner, "_show", lambda *_: ())

    def __call__(
        self, functions: Mapping[str, Any], calls: Mapping[int, RecordedCalls], default: str, _: Any
    ) -> tuple[list[Round], dict[str, str]]:
        op = next(iter(calls.values())).op
        names = [default, *(name for name in functions if name != default)]
        quick = "native" if op.name == "rms_norm" else default
        turn = {
            name: {count: self.price(name, default, quick, count) for count in calls}
            for name in names
        }
        return [turn] * 9, {}

    def price(self, name: str, default: str, quick: str, count: int) -> float:
        if name == default:
            return 2e-5
        return 1e-5 if name == quick and count <= 8 else 9e-5


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> Priced:
    return Priced(monkeypatch)


RANGES = "1..8: native, 9..: vllm_c"


def norms(count: int) -> str:
    """Who runs a norm of hidden states with so many rows."""
    return ir.ops.rms_norm.select(torch.ones(count, 48), torch.ones(48), 1e-5).provider


def norm_row() -> dict[str, Any]:
    """The row of those norms in what the server shows."""
    (row,) = [each for each in tuned_choices() if each["op"] == "rms_norm"]
    return row


@pytest.mark.usefixtures("priced")
def test_each_range_of_rows_gets_its_fastest(
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    start(directory, tmp_path, "on")
    assert [norms(count) for count in (1, 8, 9, 64, 500)] == ["native"] * 2 + ["vllm_c"] * 3
    assert norm_row()["provider"] == RANGES
    assert norm_row()["ranges"] == [
        {"first": 1, "last": 8, "provider": "native"},
        {"first": 9, "last": None, "provider": "vllm_c"},
    ]
    assert [RANGES in each for each in caplog.messages if "Autotuned rms_norm" in each] == [True]
    timed = tuned_choices()
    forget(monkeypatch)
    monkeypatch.setattr(session, "tune", pytest.fail)
    start(directory, tmp_path, "cached")
    assert tuned_choices() == timed
    assert [norms(count) for count in (8, 9)] == ["native", "vllm_c"]


@pytest.mark.usefixtures("priced")
def test_compiled_programs_and_tapes_are_cut_at_the_ranges(
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    sizes = {"max_num_seqs": 16}
    reports = []
    for mode in ("on", "cached"):
        forget(monkeypatch)
        given = settings(directory, tmp_path, mode, 2, backend="inductor")
        scheduler = given.scheduler.model_copy(update=sizes)
        given = given.model_copy(update={"scheduler": scheduler})
        reports.append(build_parts(given, StartupStatus()).compile_report)
    cold, warm = reports
    assert cold is not None
    assert warm is not None
    assert warm.cache.status is CacheStatus.HIT
    for report in (cold, warm):
        chosen = {
            str(program.sizes): {
                row.provider
                for piece in program.pieces
                for row in piece.selections
                if row.op == "rms_norm"
            }
            for program in report.programs
        }
        assert chosen == {"1..8": {"native"}, "9..512": {"vllm_c"}}
    assert [norms(count) for count in (8, 9)] == ["native", "vllm_c"]
    assert "Steps of 9 to 16 tokens run from a tape" in caplog.text
    assert "Steps of 1 to 8 tokens run from no tape" in caplog.text


@pytest.mark.usefixtures("priced")
@pytest.mark.parametrize(
    ("sizes", "winner", "remark"),
    [
        ([1, 2, 4], RANGES, ""),
        ([8, 64], RANGES, ""),
        (
            [4, 16],
            "native",
            "one provider for several sizes: a step of 8 runs at the captured size 16",
        ),
    ],
)
def test_no_range_ends_between_a_step_and_its_captured_size(
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    sizes: list[int],
    winner: str,
    remark: str,
) -> None:
    caplog.set_level(logging.INFO)
    start(directory, tmp_path, "on", 2, cudagraph_capture_sizes=sizes)
    assert (norm_row()["provider"], norm_row()["remark"]) == (winner, remark)
    assert ("Autotuning: rms_norm(x: float32[*, 48]" in caplog.text) is bool(remark)
