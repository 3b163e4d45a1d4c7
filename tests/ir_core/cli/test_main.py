"""The command as a process would run it: exit codes, and what goes to which stream."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ir_core.cli import main


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("list", "explain", "check", "bench"))


@pytest.mark.parametrize("argv", [[], ["lsit"], ["list", "--jsno"], ["bench", "--seconds", "x"]])
def test_wrong_option_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "usage: ir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["list", "rms_nrm"], "did you mean `rms_norm`"),
        (["explain", "rms_nrm"], "did you mean `rms_norm`"),
        (["explain", "rms_norm", "--priority", "nativ"], "did you mean `native`"),
        (["explain", "rms_norm", "--priority", "native,native"], "more than once"),
        (["explain", "rms_norm", "--dtype", "bfloat61"], "did you mean `bfloat16`"),
        (["explain", "rms_norm", "--shape", "8x-1"], "write sizes with x between them"),
        (["explain", "rms_norm", "--arg", "epsilon"], "write NAME=VALUE"),
        (["explain", "rms_norm", "--arg", "epsilom=1"], "did you mean `epsilon`"),
        (["explain", "rms_norm", "--device", "abacus"], "No device `abacus`"),
        (["check", "rms_nrm"], "did you mean `rms_norm`"),
        (["check", "rms_norm", "--provider", "nativ"], "did you mean `native`"),
        (["check", "all_gather", "--provider", "native", "--junit", "/"], "Cannot write `/`"),
        (["check", "all_gather", "--dtype", "bf61"], "No dtype `bf61`"),
        (["bench"], "name the OP to time"),
        (["bench", "rms_nrm"], "did you mean `rms_norm`"),
        (["bench", "rms_norm", "--provider", "nativ"], "did you mean `native`"),
    ],
)
def test_unknown_name_is_exit_code_2_with_a_suggestion(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(f"ir {argv[0]}: ")
    assert said in streams.err


def test_list_shows_schema_provider_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "linear"]) == 0
    shown = capsys.readouterr().out
    assert (
        'linear(Tensor x, Tensor weight, Tensor? bias=None, str layout="plain") -> Tensor' in shown
    )
    assert "native  " in shown
    assert "ir_core" in shown


def test_check_writes_text_and_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "report.xml"
    assert main(["check", "all_reduce", "--provider", "native", "--junit", str(path)]) == 0
    assert "ok    all_reduce  native" in capsys.readouterr().out
    (suite,) = ElementTree.parse(path).getroot()  # noqa: S314
    assert suite.get("name") == "all_reduce"
    assert suite.get("failures") == "0"


def test_reader_that_closes_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from ir_core.cli import main; raise SystemExit(main(['list']))"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def test_console_script_prints_json() -> None:
    script = Path(sys.executable).with_name("ir")
    done = subprocess.run(
        [script, "list", "silu_and_mul", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (op,) = json.loads(done.stdout)["ops"]
    assert op["name"] == "silu_and_mul"
    assert op["providers"][0]["provider"] == "native"
    assert op["priority"][-1] == "native"
