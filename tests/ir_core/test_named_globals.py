"""Globals that a function names count by their values, wherever these come from."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ir_core import Fingerprint, Registry

KERNEL = """
from toy_globals import settings
from toy_globals.helper import helped

SCALE = 1.0
UNNAMED = 1.0
LOOP = []
LOCK = None

def kernel(x):
    return [x * SCALE for _ in range(2)]

def through_a_function(x):
    return helped(x)

def through_a_module(x):
    return x * settings.DEPTH

def in_a_list(x):
    return LOOP[0](x)

def locked(x):
    with LOCK:
        return x * SCALE
"""
HELPER = """
BIAS = 1.0

def helped(x, by=None):
    return deeper(x)

def deeper(x):
    return x + BIAS

def make(value):
    return lambda x: x * value
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    texts = {"__init__": "", "kernel": KERNEL, "helper": HELPER, "settings": "DEPTH = 1\n"}
    (tmp_path / "toy_globals").mkdir()
    for name, text in texts.items():
        (tmp_path / "toy_globals" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from toy_globals import kernel  # type: ignore[import-not-found]

    yield kernel
    for name in [each for each in sys.modules if each.partition(".")[0] == "toy_globals"]:
        del sys.modules[name]


def fingerprint_of(function: Callable[..., Any]) -> Fingerprint:
    @Registry().register_op
    def same(x: Tensor) -> Tensor:
        return x

    function.__annotations__ = {"x": Tensor, "return": Tensor}
    return same.register_impl("toy")(function).fingerprint()


def changed(function: Callable[..., Any], module: ModuleType, name: str, value: object) -> set[str]:
    """The names of the factors that are others once a global is set."""
    before = dict(fingerprint_of(function).factors)
    setattr(module, name, value)
    after = dict(fingerprint_of(function).factors)
    assert before
    assert after
    return {each for each in {**before, **after} if before.get(each) != after.get(each)}


def test_constant_that_nested_code_names(toy: Any) -> None:
    found = changed(toy.kernel, toy, "SCALE", 2.0)
    assert found == {"global toy_globals.kernel.SCALE"}


def test_constant_that_is_not_named_counts_only_as_text_of_its_file(toy: Any) -> None:
    assert not changed(toy.kernel, toy, "UNNAMED", 2.0)


def test_constant_behind_functions_of_the_package(toy: Any) -> None:
    helper = sys.modules["toy_globals.helper"]
    found = changed(toy.through_a_function, helper, "BIAS", 2.0)
    assert found == {"global toy_globals.helper.BIAS"}


def test_constant_of_a_module_of_the_package(toy: Any) -> None:
    found = changed(toy.through_a_module, toy.settings, "DEPTH", 2)
    assert found == {"global toy_globals.settings.DEPTH"}


def test_function_put_in_the_place_of_another(toy: Any) -> None:
    found = changed(toy.through_a_function, toy, "helped", toy.kernel)
    assert "global toy_globals.kernel.helped" in found


def test_default_of_a_function_behind_a_global(toy: Any) -> None:
    before = fingerprint_of(toy.through_a_function)
    toy.helped.__defaults__ = (3.0,)
    assert fingerprint_of(toy.through_a_function) != before


def test_constant_behind_a_wrapper(toy: Any) -> None:
    helper = sys.modules["toy_globals.helper"]
    toy.helped = functools.lru_cache(toy.helped)
    found = changed(toy.through_a_function, helper, "BIAS", 2.0)
    assert found == {"global toy_globals.helper.BIAS"}


def test_module_that_no_import_leads_to_is_among_the_files(toy: Any) -> None:
    directory = Path(toy.__file__).parent
    (directory / "late.py").write_text("def late(x): return x\n")
    toy.helped = __import__("toy_globals.late", fromlist=["late"]).late
    names = [name for name, _ in fingerprint_of(toy.through_a_function).factors]
    assert "module toy_globals.late" in names


def test_functions_elsewhere_are_not_followed(toy: Any) -> None:
    toy.helped = functional.silu
    names = [name for name, _ in fingerprint_of(toy.through_a_function).factors]
    assert not [each for each in names if each.startswith("global torch")]
    assert "global toy_globals.kernel.helped" in names


@pytest.mark.parametrize("value", [threading.Lock(), torch.ones(1)])
def test_value_without_a_text_counts_by_its_type(toy: Any, value: object) -> None:
    toy.LOCK = value
    factors = dict(fingerprint_of(toy.locked).factors)
    kind = type(value)
    assert factors["global toy_globals.kernel.LOCK"] == f"{kind.__module__}.{kind.__qualname__}"


def test_list_that_holds_itself_counts_by_its_type(toy: Any) -> None:
    toy.LOOP.append(toy.LOOP)
    factors = dict(fingerprint_of(toy.in_a_list).factors)
    assert factors["global toy_globals.kernel.LOOP"] == "builtins.list"


def test_functions_that_name_each_other_end(toy: Any) -> None:
    toy.LOOP.append(toy.in_a_list)
    assert fingerprint_of(toy.in_a_list).digest is not None


def test_each_of_two_functions_that_one_made_counts(toy: Any) -> None:
    helper = sys.modules["toy_globals.helper"]
    toy.LOOP.extend([helper.make(1.0), helper.make(2.0)])
    before = fingerprint_of(toy.in_a_list).digest
    for at in (0, 1):
        known = toy.LOOP[at]
        toy.LOOP[at] = helper.make(3.0)
        assert fingerprint_of(toy.in_a_list).digest != before
        toy.LOOP[at] = known
    assert fingerprint_of(toy.in_a_list).digest == before


def test_long_chain_of_functions_ends(toy: Any) -> None:
    lines = [f"def f{number}(x): return f{number + 1}(x)" for number in range(2000)]
    exec("\n".join([*lines, "def f2000(x): return x * SCALE"]), vars(toy))  # noqa: S102
    toy.LOOP.append(toy.f0)
    assert changed(toy.in_a_list, toy, "SCALE", 2.0) == {"global toy_globals.kernel.SCALE"}
