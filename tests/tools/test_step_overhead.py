"""The step bench from end to end, on a tiny model."""

import json
import os
from pathlib import Path

import psutil
import pytest
from tiny_checkpoints import make_model

from tools.bench.step_overhead import main


def _children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}


def test_bench_splits_the_step_of_each_level_and_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model("llama").save_pretrained(tmp_path / "model")
    before, file = _children(), tmp_path / "out.json"
    arguments = ["--streams", "1,2", "--sampling", "greedy,top_p", "--max-tokens", "6"]
    code = main([*arguments, "--json", str(file), "--", "--model", str(tmp_path / "model")])
    assert code == 0
    levels = json.loads(file.read_text())["levels"]
    assert [(level["sampling"], level["streams"]) for level in levels] == [
        ("greedy", 1),
        ("greedy", 2),
        ("top_p", 1),
        ("top_p", 2),
    ]
    for level in levels:
        costs = level["costs"]
        assert costs["num_steps"] >= 6
        assert all(us > 0.0 for us in costs["phase_us"].values())
        assert 0.0 < level["overhead_us"] < level["step_us"]
    table = capsys.readouterr().out.splitlines()
    assert table[0].split("|")[1:4] == [" sampling ", " streams ", " schedule "]
    assert len(table) == 2 + len(levels)
    assert _children() <= before


def test_refused_request_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model("llama").save_pretrained(tmp_path)
    arguments = ["--streams", "1", "--sampling", "greedy", "--max-tokens", "400"]
    assert main([*arguments, "--", "--model", str(tmp_path)]) == 1
    assert "failed a request: " in (said := capsys.readouterr().err)
    assert "context_length_exceeded" in said


def test_failing_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--streams", "1", "--", "--model", "/nowhere/at/all"]) == 1
    assert "ended with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "said"), [("--streams=0", "0 is not 1 or more"), ("--sampling=x", "x is none of")]
)
def test_wrong_options_are_refused(
    argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([argument])
    assert said in capsys.readouterr().err
