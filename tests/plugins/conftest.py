"""An environment of its own for distributions from outside the tree.

It borrows the packages of the one that runs the tests, which never sees what is installed here.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_TOY = Path(__file__).parent / "toy"

_RUN_COMMANDS = """
import contextlib, io, json, sys
from ir_core.cli import main

answers = []
for command in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command.split())
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """How one `ir` command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON of a command that succeeded."""
        assert self.code == 0, self.err or self.out
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment and the place where wheels for it are made."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    def run(
        self, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run its interpreter, one thread, off the source tree."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.root,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    def ir(self, *commands: str, variables: Mapping[str, str] | None = None) -> "list[Answer]":
        """Run `ir` commands one after the other in one process of this environment."""
        done = self.run("-c", _RUN_COMMANDS, *commands, variables=variables)
        assert done.returncode == 0, done.stderr
        return [Answer(*each) for each in json.loads(done.stdout)]

    def install(self, wheel: Path) -> None:
        _pip("--python", str(self.python), "install", "--no-index", "--no-deps", str(wheel))


def _pip(*arguments: str) -> None:
    # pip's own settings are the user's: the environment is passed on as it is.
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _create(root: Path) -> Environment:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=60
    )
    environment = Environment(root)
    own = environment.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # `addsitedir` follows the other environment's own .pth files; a bare path would not.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(borrowed)]
    (Path(own.stdout.strip()) / "borrowed.pth").write_text("".join(lines))
    return environment


def _copy_sources(target: Path) -> Path:
    """A copy without what earlier builds left, so that nothing is written beside the sources."""
    for source in _TOY.rglob("*"):
        if source.suffix in (".py", ".toml") and "build" not in source.parts:
            copy = target / source.relative_to(_TOY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return target


def _build(sources: Path, target: Path) -> Path:
    _pip(
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--wheel-dir",
        str(target),
        str(sources),
    )
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def toy_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the toy's wheel in it."""
    root = tmp_path_factory.mktemp("toy")
    environment = _create(root / "venv")
    environment.install(_build(_copy_sources(root / "sources"), root / "wheels"))
    return environment


@pytest.fixture
def add_plugin(
    toy_environment: Environment, tmp_path: Path
) -> Callable[[str, str, Iterable[str]], dict[str, str]]:
    """Make a distribution by hand; gives the variables under which the environment sees it."""

    def add(name: str, source: str, entry_points: Iterable[str]) -> dict[str, str]:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(entry_points) + "\n")
        return {"PYTHONPATH": str(tmp_path)}

    return add
