"""Pass plug-ins come in fixed order; a broken or repeated one names its distribution."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from ir_core import PluginError
from ir_passes.plugins import load_additions

_PASS = """
from dataclasses import dataclass
from typing import ClassVar
from ir_passes import Addition, Pass, PassResult

@dataclass(frozen=True)
class Noted(Pass):
    name: ClassVar[str] = "NAME"

    def run(self, graph, context):
        return PassResult(0)

def passes():
    return RESULT
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Install]:
    """Put a distribution with one module and one entry point on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(
        distribution: str, name: str = "noted", result: str = "Addition(Noted())", text: str = ""
    ) -> None:
        module = distribution.replace("-", "_") + "_passes"
        source = text or _PASS.replace("NAME", name).replace("RESULT", result)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[ir_passes.passes]\nfirst = {module}:passes\n")
        modules.append(module)

    modules: list[str] = []
    yield add
    for module in modules:
        sys.modules.pop(module, None)


def test_passes_come_ordered_by_distribution_with_their_origin(install: Install) -> None:
    install("zeta", "last")
    install("alpha", "early", "[Addition(Noted(), after='eliminate_noops', is_enabled=False)]")
    first, second = load_additions({})
    assert (first.origin, first.step.name, first.after) == ("alpha", "early", "eliminate_noops")
    assert (first.is_enabled, second.is_enabled) == (False, True)
    assert second.origin == "zeta"


def test_allow_list_chooses_by_distribution_or_name(install: Install) -> None:
    install("good-one", "kept")
    install("other", "left")
    assert [each.step.name for each in load_additions({"IR_PLUGINS": "Good_One"})] == ["kept"]
    assert load_additions({"IR_PLUGINS": "none"}) == ()
    assert len(load_additions({"IR_PLUGINS": "first"})) == 2


def test_same_pass_from_two_distributions_names_both(install: Install) -> None:
    install("alpha")
    install("zeta")
    with pytest.raises(PluginError, match=r"`noted` is added by `first` of `alpha` .* of `zeta`"):
        load_additions({})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("None", "returned None, not an `ir_passes.plugins.Addition`"),
        ("Addition(3)", "adds 3, which is no `ir_passes.Pass`"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_broken_plugin_names_its_distribution(install: Install, result: str, message: str) -> None:
    install("bad-one", result=result)
    with pytest.raises(PluginError, match=f"(?s)`first` of `bad-one`.*{message}.*uninstall"):
        load_additions({})


def test_entry_point_that_names_no_function_is_an_error(install: Install) -> None:
    install("bad-two", text="passes = 3\n")
    with pytest.raises(PluginError, match="it names 3, not a function"):
        load_additions({})
