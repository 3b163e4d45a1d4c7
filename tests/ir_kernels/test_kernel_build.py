"""The build: every way it can fail leaves a report and no library, and the install goes on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernel_builds
import pytest
from kernel_builds import PACKAGE

HAS_COMPILER = any(shutil.which(each) for each in ("g++", "c++", "clang++"))


@pytest.fixture(scope="module")
def kernel_build() -> Any:
    return kernel_builds.load("kernel_build")


def fake_compiler(path: Path, *, fails_on: str, words: str) -> str:
    """A compiler with a version that fails with `words` on commands that name `fails_on`."""
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'  *{fails_on}*) echo "{words}" >&2; exit 3;;\n'
        '  *--version*) echo "fake 1.0";;\n'
        "esac\n"
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'
        "exit 0\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


def stale(package: Path, kernel_build: Any) -> Path:
    library = package / kernel_build.LIBRARY
    library.write_bytes(b"an older build")
    return library


@pytest.mark.parametrize("compiler", ["/nonexistent/g++", "no-such-compiler -m64"])
def test_missing_compiler_leaves_a_reason_and_no_stale_library(
    compiler: str, kernel_build: Any, tmp_path: Path
) -> None:
    library = stale(tmp_path, kernel_build)
    report = kernel_build.build(tmp_path, {"CXX": compiler})
    assert not report.built
    assert f"no C++ compiler: `CXX` is `{compiler}`, which does not run" in report.reason
    assert not library.exists()
    written = json.loads((tmp_path / kernel_build.REPORT).read_text(encoding="utf-8"))
    assert (written["built"], written["reason"]) == (False, report.reason)


def test_no_compiler_on_the_path_is_named(
    kernel_build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build.shutil, "which", lambda _: None)
    report = kernel_build.build(tmp_path, {})
    assert report.reason.startswith("no C++ compiler: no g++, c++ or clang++; install one")


@pytest.mark.parametrize("fails_on", ["isa_portable.cpp", "binding.cpp", "-shared"])
def test_compilers_words_are_the_reason(fails_on: str, kernel_build: Any, tmp_path: Path) -> None:
    library = stale(tmp_path, kernel_build)
    words = "error: expected something else"
    compiler = fake_compiler(tmp_path / "cc", fails_on=fails_on, words=words)
    report = kernel_build.build(tmp_path, {"CXX": compiler})
    assert not report.built
    assert "failed (3)" in report.reason
    assert words in report.reason
    assert not library.exists()


def test_endless_words_are_cut(kernel_build: Any, tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path / "cc", fails_on="binding.cpp", words="x" * 20_000)
    report = kernel_build.build(tmp_path, {"CXX": compiler})
    assert len(report.reason) < 3000


def test_missing_torch_says_what_to_do(
    kernel_build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build.importlib.util, "find_spec", lambda _: None)
    compiler = fake_compiler(tmp_path / "cc", fails_on="nothing", words="")
    report = kernel_build.build(tmp_path, {"CXX": compiler})
    assert "torch was not there at build time" in report.reason
    assert "--no-build-isolation" in report.reason


def test_unforeseen_error_is_a_reason_too(
    kernel_build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(kernel_build, "find_toolchain", fail)
    report = kernel_build.build(tmp_path, {})
    assert report.reason == "PermissionError: [Errno 13] denied"


def test_success_says_what_was_built(kernel_build: Any, tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path / "cc", fails_on="nothing-at-all", words="")
    report = kernel_build.build(tmp_path / "new" / "package", {"CXX": compiler})
    assert report.built, report.reason
    assert (report.compiler, report.reason) == ("fake 1.0", "")
    assert "portable" in report.isas
    assert (tmp_path / "new" / "package" / kernel_build.LIBRARY).exists()


@pytest.mark.parametrize(
    ("machine", "isas"),
    [
        ("x86_64", {"portable", "avx2", "avx512", "avx512_bf16", "amx"}),
        ("aarch64", {"portable"}),
        ("riscv64", {"portable"}),
    ],
)
def test_only_x86_is_given_x86_flags(
    machine: str, isas: set[str], kernel_build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build.platform, "machine", lambda: machine)
    assert set(kernel_build.isa_flags()) == isas


def test_isa_that_the_compiler_does_not_know_is_left_out(kernel_build: Any, tmp_path: Path) -> None:
    words = "unrecognized option -mamx-bf16"
    compiler = fake_compiler(tmp_path / "cc", fails_on="-mamx-bf16", words=words)
    report = kernel_build.build(tmp_path, {"CXX": compiler})
    assert report.built, report.reason
    assert set(report.isas) == set(kernel_build.isa_flags()) - {"amx"}


def test_script_reports_failure_in_its_exit_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PACKAGE / "kernel_build.py"), str(tmp_path)],
        env={**os.environ, "CXX": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["built"] is False


def install(source: Path, target: Path, **environ: str) -> Path:
    """Install a copy of the package with plain pip; the folder it went to."""
    ignore = shutil.ignore_patterns("*.so", "build_report.json", "*.egg-info", "__pycache__")
    shutil.copytree(PACKAGE, source, ignore=ignore)
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target / "ir_kernels"


def explanation(site: Path) -> str:
    """What the provider in `site` says of itself, in a process of its own."""
    code = "from ir_kernels import library; print(library.__file__); print(library.availability())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, answer = done.stdout.splitlines()
    assert Path(file).parent.parent == site
    return answer


def test_install_without_a_compiler_succeeds_and_explains(tmp_path: Path) -> None:
    installed = install(tmp_path / "source", tmp_path / "site", CXX="/nonexistent")
    assert not list(installed.glob("*.so"))
    answer = explanation(tmp_path / "site")
    assert answer.startswith("(False, 'the C++ library was not built: no C++ compiler")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no compiler")
def test_plain_wheel_holds_a_library_that_loads(tmp_path: Path) -> None:
    installed = install(tmp_path / "source", tmp_path / "site")
    assert (installed / "ir_kernels_c.so").exists()
    assert explanation(tmp_path / "site") == "(True, '')"
