"""House rules that no linter knows: sizes, first lines, asserts, left-overs, machine paths."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
MAX_LINES = 400
LEFT_OVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(root|home/\w+|work|Users)/")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tracked_text() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    skipped = {"LICENSE", "smollm2_greedy.json", "test_sources.py"}
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and path.name not in skipped]


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_source_keeps_house_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    problems: list[str] = []
    if text.strip() and not ast.get_docstring(tree):
        problems.append("no module docstring")
    if len(text.splitlines()) > MAX_LINES:
        problems.append(f"more than {MAX_LINES} lines")
    problems += [
        f"assert at line {node.lineno}" for node in ast.walk(tree) if isinstance(node, ast.Assert)
    ]
    assert not problems


def test_environment_is_written_in_one_module_only() -> None:
    """A kernel's library asks C's environment where torch's function is; nobody else sees it."""
    writes = re.compile(
        r"os\.environ\[[^\]]+\]\s*=[^=]|os\.environ\.(setdefault|update|pop)|os\.putenv"
    )
    writers = [_name(path) for path in SOURCES if writes.search(path.read_text())]
    assert set(writers) <= {
        "packages/serve-shim/src/serve_shim/startup.py",
        "packages/ir-passes/src/ir_passes/backends/kernel_library.py",
    }


def test_repository_has_no_left_overs() -> None:
    found: list[str] = []
    for path in _tracked_text():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if LEFT_OVERS.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{_name(path)}:{number}: {line.strip()[:100]}")
    assert not found


def test_modules_of_no_noun_do_not_exist() -> None:
    banned = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [
        _name(path) for path in SOURCES if path.stem in banned or path.parent.name in banned
    ]
