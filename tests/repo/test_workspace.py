"""The workspace fits together: layers, pins, metadata, and the two commands of the README."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MEMBERS = ["ir-core", "ir-passes", "ir-kernels", "serve-shim"]


def _project(member: str) -> dict[str, object]:
    text = (ROOT / "packages" / member / "pyproject.toml").read_text()
    return tomllib.loads(text)["project"]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if "==" in line]
    return {name.lower().replace("_", "-"): version for name, version in pins}


def test_layers_point_one_way() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("member", MEMBERS)
def test_member_requirements_admit_the_tested_pins(member: str) -> None:
    pins = _pins()
    requirements = [Requirement(str(text)) for text in _project(member)["dependencies"]]  # type: ignore[attr-defined]
    for requirement in requirements:
        name = requirement.name.lower().replace("_", "-")
        if name not in MEMBERS:
            assert requirement.specifier.contains(pins[name]), requirement


@pytest.mark.parametrize("member", MEMBERS)
def test_member_cannot_be_uploaded_by_accident(member: str) -> None:
    assert "Private :: Do Not Upload" in _project(member)["classifiers"]  # type: ignore[operator]


def test_members_share_one_version() -> None:
    assert len({_project(member)["version"] for member in MEMBERS}) == 1


def test_torch_is_no_build_requirement() -> None:
    for member in MEMBERS:
        text = (ROOT / "packages" / member / "pyproject.toml").read_text()
        assert not any("torch" in name for name in tomllib.loads(text)["build-system"]["requires"])


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
