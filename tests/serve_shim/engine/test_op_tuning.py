"""Ops are tuned before a server is ready, from its own model, and once for all."""

import json
import logging
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoints import make_model
from tuned_starts import settings
from tuned_table import forget, own_table

import ir_core as ir
from ir_core.autotuning import session
from ir_core.autotuning.recorder import RecordedCalls
from ir_core.autotuning.table import Timing, TunedChoice
from ir_passes.compiling.single_call import SingleCalls
from ir_passes.config import CacheMode
from ir_passes.programs.report import CacheStatus
from serve_shim.engine.build import build_parts, look_up
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.status import StartupStatus
from serve_shim.errors import CompileCacheError
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


@pytest.fixture
def native_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing finds native norms the fastest, and nothing else to change."""

    def tune(calls: dict[int, RecordedCalls], *_: Any, **__: Any) -> TunedChoice:
        first = calls[1]
        default = first.op.select(*first.samples[0]).provider
        provider = "native" if first.op.name == "rms_norm" else default
        timings = (Timing(default, {1: 40.3}), Timing("native", {1: 12.1}))
        return TunedChoice(first.op.name, first.signature, default, provider, timings, ())

    monkeypatch.setattr(session, "tune", tune)


def start(*given: Any, **config: Any) -> EngineParts:
    return build_parts(settings(*given, **config), StartupStatus())


def summary(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [each for each in caplog.messages if each.startswith("Autotuning: 9 kinds")]
    caplog.clear()
    return line


def test_a_start_times_and_the_next_one_loads(
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    start(directory, tmp_path, "on")
    assert "Autotuning: nothing is stored for this machine" in caplog.messages
    line = summary(caplog)
    timed = tuned_choices()
    num_timed = sum(bool(each["microseconds"]) for each in timed)
    assert f"9 kinds of calls, {num_timed} timed now" in line
    assert {each["op"] for each in timed if each["microseconds"]} >= {
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "rotary_embedding",
    }
    forget(monkeypatch)
    monkeypatch.setattr(session, "tune", pytest.fail)
    start(directory, tmp_path, "cached")
    assert "Autotuning: 9 kinds of calls, 0 timed now" in summary(caplog)
    assert tuned_choices() == timed


@pytest.mark.usefixtures("native_norms")
def test_a_changed_choice_is_logged_and_runs(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start(directory, tmp_path, "on")
    changed = [each for each in caplog.messages if each.startswith("Autotuned ")]
    assert changed == [
        "Autotuned rms_norm(x: float32[*, 48], weight: float32[48], epsilon: 1e-05, "
        "variance_size: None): native instead of vllm_c "
        "(1 token: vllm_c 40.3 µs, native 12.1 µs)"
    ]
    for width, provider in ((48, "native"), (64, "vllm_c")):
        call = torch.ones(3, width), torch.ones(width), 1e-5
        assert ir.ops.rms_norm.select(*call).provider == provider


@pytest.mark.usefixtures("native_norms")
def test_compiled_programs_rest_on_the_choices(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(directory, tmp_path, "on", 2, backend="inductor").compile_report
    forget(monkeypatch)
    second = start(directory, tmp_path, "cached", 2, backend="inductor").compile_report
    forget(monkeypatch)
    third = start(directory, tmp_path, "off", 2, backend="inductor").compile_report
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.selected_impls["rms_norm"] == {"native": 1}
    assert second.cache.status is CacheStatus.HIT
    assert second.selected_impls == first.selected_impls
    assert third.cache.status is CacheStatus.MISS
    assert "timing prefers the priority's for `rms_norm`" in str(third.cache.reasons)
    assert third.selected_impls["rms_norm"] == {"vllm_c": 1}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_inductor_fuses_is_timed_compiled(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(directory, tmp_path, "on", 2, backend="inductor")
    timed = {each["op"]: each for each in tuned_choices()}
    for name in ("rms_norm", "silu_and_mul"):
        times, written = timed[name]["microseconds"], timed[name]["microseconds_as_written"]
        assert "vllm_c" in times
        assert times.keys() == written.keys()
        assert "native" in times or "took" in str(timed[name]["rejections"])
    forget(monkeypatch)
    monkeypatch.setattr(SingleCalls, "compile", pytest.fail)
    report = start(directory, tmp_path, "cached", 2, backend="inductor").compile_report
    assert {each["op"]: each for each in tuned_choices()} == timed
    assert report is not None
    assert report.cache.status is CacheStatus.HIT


def test_nothing_is_written_where_the_cache_is_read_only(directory: Path, tmp_path: Path) -> None:
    start(directory, tmp_path, "on", cache_mode=CacheMode.RO)
    assert tuned_choices()
    assert not (tmp_path / "autotune").exists()


def test_without_a_cache_there_is_nothing_to_load(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(directory, tmp_path, "cached", cache_mode=CacheMode.OFF)
    assert "Nothing is autotuned: it was to come from the cache" in caplog.text
    assert tuned_choices() == []


def test_a_look_up_times_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "tune", pytest.fail)
    with pytest.raises(CompileCacheError):
        look_up(settings(directory, tmp_path, "on", 2))
    assert not (tmp_path / "autotune").exists()


def test_nothing_of_a_compiler_is_imported(directory: Path, tmp_path: Path) -> None:
    code = """
import json, sys
from serve_shim import LLM
directory, cache = sys.argv[1:]
for mode in ("on", "cached"):
    config = {"autotune": mode, "cache_dir": cache, "cache_mode": "rw"}
    LLM(directory, enforce_eager=True, compilation_config=config).close()
print(json.dumps([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert list((tmp_path / "autotune").glob("v*/*.json"))
