"""Documents keep their promises: their Python runs, their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [path for path in DOCUMENTS if "```python" in path.read_text()]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", WITH_PYTHON, ids=_name)
def test_document_python_runs(path: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    # A file, not -c: ops declared in a document are fingerprinted by their source.
    script = tmp_path / "document.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_document_links_exist(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    missing = [
        target for target in targets if "://" not in target and not (path.parent / target).exists()
    ]
    assert not missing


def test_readme_fits_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 75


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=_name)
def test_decision_is_one_page(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Choice",
        "## Given up",
    ]
