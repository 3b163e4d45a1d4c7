"""The process: exit codes and what it does not import."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from serve_shim import __main__ as program
from serve_shim.errors import EngineDeadError, ModelLoadError, SettingsError

COMMAND = str(Path(sysconfig.get_path("scripts")) / "serve-shim")


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("IR_", "SERVE_SHIM_"))}
    return subprocess.run(
        [COMMAND, *argv], env=clean | environ, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_a_mistake_ends_in_exit_code_2_and_one_message():
    done = run("--prot=80", SERVE_SHIM_SEED="x")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("serve-shim: error: 2 settings are wrong:\n")
    assert "Did you mean `--port`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [COMMAND, "--print-config"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_misspelt_op_is_refused_before_the_rest_is_imported():
    code = """
import sys
from serve_shim.__main__ import main
sys.argv = ["serve-shim", "--ir-op-priority.rms_nrm=native"]
code = main()
heavy = {"ray", "fastapi", "uvicorn", "tokenizers", "serve_shim.engine.core", "serve_shim.server",
         "torch._dynamo", "torch._inductor"} & set(sys.modules)
print(code, sorted(heavy))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2 []\n"
    assert "did you mean `rms_norm`" in done.stderr


def test_a_misspelt_pass_is_refused_before_the_rest_is_imported():
    code = """
import sys
from serve_shim.__main__ import main
sys.argv = ["serve-shim", "--disable-pass=eliminate_nops"]
code = main()
heavy = {"ray", "uvicorn", "tokenizers", "serve_shim.engine.core", "serve_shim.server",
         "torch._dynamo.convert_frame", "torch._inductor.compile_fx"} & set(sys.modules)
print(code, sorted(heavy))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2 []\n"
    assert "`--disable-pass`: No pass `eliminate_nops`" in done.stderr
    assert "did you mean `eliminate_noops`" in done.stderr


def test_torch_is_not_imported_before_the_settings_are_right():
    code = """
import sys
from serve_shim.__main__ import main
for argv in (["--help"], ["--help=all"], ["--version"], ["--print-config"], ["--prot=1"]):
    sys.argv = ["serve-shim", *argv]
    main()
    if "torch" in sys.modules:
        sys.exit(f"{argv} imported torch")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("a"), 2),
        (ModelLoadError("a"), 3),
        (EngineDeadError("a"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(*_arguments: object) -> int:
        raise error

    monkeypatch.setattr("serve_shim.cli.run", fail)
    assert program.main() == code
    text = capsys.readouterr().err
    assert text == ("" if code == 130 else "serve-shim: error: a\n")


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(*_arguments: object) -> int:
        raise RuntimeError("ours")

    monkeypatch.setattr("serve_shim.cli.run", fail)
    with pytest.raises(RuntimeError, match="ours"):
        program.main()


def test_an_interrupt_during_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "serve_shim.cli", Interrupted("serve_shim.cli"))
    assert program.main() == 130
