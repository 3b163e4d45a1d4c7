"""The serving bench from end to end, against a program that only pretends to serve."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools.bench.engine import Engine
from tools.bench.load import Load
from tools.bench.machine_lock import MachineLock
from tools.bench.server_run import EngineError, measure
from tools.bench.serving import main

_FAKE = [sys.executable, str(Path(__file__).with_name("fake_completions.py")), "{port}"]


def _config(path: Path, *engines: dict[str, Any]) -> str:
    lines = ["[load]", "streams = [1, 3]", "min_requests = 2", "max_tokens = 5", "warmup = 1"]
    for engine in engines:
        lines += ["[[engine]]", *(f"{key} = {json.dumps(value)}" for key, value in engine.items())]
    path.write_text("\n".join(lines))
    return str(path)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}


def test_bench_measures_all_engines_and_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _children()
    config = _config(tmp_path / "engines.toml", {"name": "ours", "ours": True, "command": _FAKE})
    report = tmp_path / "report.json"
    peer = f"peer={shlex.join(_FAKE)}"
    lock = str(tmp_path / "lock")
    common = ["--config", config, "--peer", peer, "--rounds", "2", "--lock", lock]
    assert main([*common, "--json", str(report)]) == 0

    data = json.loads(report.read_text())
    assert [(row["streams"], row["engine"], row["rounds"]) for row in data["rows"]] == [
        (1, "ours", 2),
        (1, "peer", 2),
        (3, "ours", 2),
        (3, "peer", 2),
    ]
    levels = data["runs"]["peer"][0]["levels"]
    assert [(level["requests"], level["errors"]) for level in levels] == [(3, 0), (9, 0)]
    assert [level["output_tokens"] for level in levels] == [15, 45]
    assert data["rows"][0]["to_best_peer"] > 0
    assert data["starts"][0]["ready_s"] > 0
    assert "| -     | 3       | peer   |" in capsys.readouterr().out
    assert _children() == before


def test_engine_that_does_not_start_is_reported_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(
        tmp_path / "engines.toml",
        {"name": "ours", "ours": True, "command": _FAKE},
        {"name": "dead", "command": [*_FAKE, "--exit"]},
    )
    report = tmp_path / "report.json"
    assert main(["--config", config, "--rounds", "2", "--json", str(report)]) == 1
    data = json.loads(report.read_text())
    assert [row["rounds"] for row in data["rows"]] == [2, 2]
    assert len(data["failures"]) == 1
    errors = capsys.readouterr().err
    assert "`dead` ended with 1 before it was ready; its output ends:\nfake: no weights" in errors


def test_engine_that_refuses_requests_is_stopped(tmp_path: Path) -> None:
    before = _children()
    engine = Engine(name="rude", command=(*_FAKE, "--refuse"))
    with pytest.raises(EngineError, match=r"`rude` failed a request of the warm-up: .*400"):
        measure(engine, Load(), tmp_path / "log", MachineLock(None))
    assert _children() == before


def test_program_that_is_not_there_is_an_engine_error(tmp_path: Path) -> None:
    engine = Engine(name="gone", command=("no-such-program", "{port}"))
    with pytest.raises(EngineError, match=r"`gone` does not start: .*no-such-program"):
        measure(engine, Load(), tmp_path / "log", MachineLock(None))


def test_server_that_never_gets_ready_is_given_up_and_stopped(tmp_path: Path) -> None:
    before = _children()
    sleep = "import time; time.sleep(60)"
    command = (sys.executable, "-c", sleep, "{port}")
    engine = Engine(name="slow", command=command, ready_timeout=0.3)
    with pytest.raises(EngineError, match=r"`slow` was not ready within 0\.3 s"):
        measure(engine, Load(), tmp_path / "log", MachineLock(None))
    assert _children() == before


def test_bench_that_is_ended_ends_its_server_and_keeps_what_it_has(tmp_path: Path) -> None:
    config = _config(
        tmp_path / "engines.toml",
        {"name": "ours", "ours": True, "command": _FAKE},
        {"name": "hangs", "command": [*_FAKE, "--hang"]},
    )
    report = tmp_path / "report.json"
    options = ["--config", config, "--rounds", "1", "--json", str(report)]
    bench = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.serving", *options, "--logs", str(tmp_path)],
        cwd=Path(__file__).parents[2],
    )
    try:
        _wait_for(lambda: "POST" in _text(tmp_path / "hangs.log"))
        server = psutil.Process(bench.pid).children()
        bench.terminate()
        assert bench.wait(10) == 143
    finally:
        bench.kill()
        bench.wait(10)
    assert len(server) == 1
    assert not server[0].is_running()
    assert [row["engine"] for row in json.loads(report.read_text())["rows"]] == ["ours", "ours"]


def test_wrong_configuration_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--peer", "nonsense"]) == 2
    assert "--peer nonsense" in capsys.readouterr().err


def test_options_of_our_server_need_a_default_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tmp_path / "engines.toml", {"name": "ours", "ours": True, "command": _FAKE})
    assert main(["--config", config, "--", "--dtype", "float32"]) == 2
    assert "has its own commands: write ['--dtype', 'float32'] there" in capsys.readouterr().err
