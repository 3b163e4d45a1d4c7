"""Compilers of pieces from outside the tree: whole models on them, and errors of broken ones."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Environment

AddPlugin = Callable[[str, str, Iterable[str]], dict[str, str]]

_MODEL = Path(__file__).parent / "toy_model.py"
_FIND = """
import sys
from ir_core import PluginError
from ir_passes import BackendError
from ir_passes.backends.registry import find_backend
try:
    print(find_backend(sys.argv[1]).name)
except (BackendError, PluginError) as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def outcomes(toy_environment: Environment) -> dict[str, Any]:
    done = toy_environment.run(str(_MODEL))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find(environment: Environment, name: str, variables: dict[str, str] | None = None) -> str:
    done = environment.run("-c", _FIND, name, variables=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("backend", ["toy_functional", "toy_lowered"])
def test_model_on_a_backend_from_outside_equals_the_eager_one(
    outcomes: dict[str, Any], backend: str
) -> None:
    found = outcomes[backend]
    assert found["backend"] == backend
    assert found["pieces"] == [4, 3]
    assert found["difference"] == 0.0


def test_functional_backend_sees_ir_ops_intact_once_for_equal_pieces(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["seen"] == {
        "fused_add_rms_norm": 2,
        "linear": 4,
        "toy_blend": 1,
        "rms_norm": 1,
    }
    assert set(outcomes["toy_functional"]["selected"]) == {"paged_attention"}


def test_lowered_backend_gets_the_implementations_that_were_chosen(
    outcomes: dict[str, Any],
) -> None:
    selected = outcomes["toy_lowered"]["selected"]
    assert selected["rms_norm"] == {"toy": 1}
    assert selected["toy_blend"] == {"toy": 1}
    assert sum(selected["fused_add_rms_norm"].values()) == 3


def test_backend_of_a_wheel_is_found_and_suggested(toy_environment: Environment) -> None:
    assert find(toy_environment, "toy_lowered") == "toy_lowered"
    unknown = find(toy_environment, "toy_lowerd")
    assert unknown.startswith("BackendError: No backend is called `toy_lowerd`")
    assert "did you mean `toy_lowered`" in unknown


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('no such compiler: fastc')", "OSError: no such compiler: fastc"),
        ("Fast = 3", "TypeError: it names 3, which is no `ir_passes.Backend`"),
        ("class Fast:\n    def __init__(self): self.left = 1 / 0", "ZeroDivisionError: "),
        ("", "AttributeError: "),
    ],
    ids=["does not import", "no backend", "cannot be made", "names nothing"],
)
def test_broken_backend_is_an_error_that_names_its_distribution(
    toy_environment: Environment, add_plugin: AddPlugin, source: str, reason: str
) -> None:
    variables = add_plugin(
        "shaky-compiler", source, ["[ir_passes.backends]", "fast = shaky_compiler:Fast"]
    )
    answer = find(toy_environment, "fast", variables)
    assert answer.startswith("PluginError: Backend `fast` of `shaky-compiler`")
    assert reason in answer
    assert find(toy_environment, "toy_lowered", variables) == "toy_lowered"


def test_backend_that_two_distributions_offer_is_an_error_with_both(
    toy_environment: Environment, add_plugin: AddPlugin
) -> None:
    entry = ["[ir_passes.backends]", "toy_lowered = other_toys:Fast"]
    answer = find(toy_environment, "toy_lowered", add_plugin("other-toys", "", entry))
    assert answer.startswith("PluginError: Backend `toy_lowered` is offered by ")
    assert "`toy`" in answer
    assert "`other-toys`" in answer
