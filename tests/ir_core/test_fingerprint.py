"""What changes a fingerprint, what does not, and what can have none."""

import functools
import importlib
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import Fingerprint, IrOp, Registry

KERNEL = """
import math
from torch import Tensor
from toy_fp import helper
from toy_fp.deep import nested

FACTOR = 2

def kernel(x: Tensor) -> Tensor:
    return helper.twice(x)

def make(value, function=None):
    def closed(x: Tensor) -> Tensor:
        return x * value if function is None else function(x)
    return closed
"""


class Toy:
    """A package on disk whose files a test may change, fingerprinted in a fresh registry."""

    def __init__(self, root: Path) -> None:
        self.root = root / "toy_fp"
        self.write("__init__.py", "")
        self.write("kernel.py", KERNEL)
        self.write("helper.py", "from toy_fp.deep import nested\ndef twice(x): return x * 2\n")
        self.write("deep/__init__.py", "")
        self.write("deep/nested.py", "import torch\nCONSTANT = 1\n")
        self.write("unrelated.py", "CONSTANT = 1\n")

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def module(self) -> Any:
        forget()
        importlib.invalidate_caches()
        return importlib.import_module("toy_fp.kernel")

    def fingerprint(self, **options: Any) -> Fingerprint:
        return fingerprint_of(self.module().kernel, **options)


def fingerprint_of(function: Callable[..., Any], **options: Any) -> Fingerprint:
    @Registry().register_op
    def same(x: Tensor) -> Tensor:
        return x

    return same.register_impl("toy", **options)(function).fingerprint()


def forget() -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "toy_fp"]:
        del sys.modules[name]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Toy(tmp_path)
    forget()


def test_a_fingerprint_lists_its_factors_and_no_path(toy: Toy) -> None:
    fingerprint = toy.fingerprint()
    names = [name for name, _ in fingerprint.factors]
    assert [each for each in names if each.startswith("module")] == [
        "module toy_fp",
        "module toy_fp.deep",
        "module toy_fp.deep.nested",
        "module toy_fp.helper",
        "module toy_fp.kernel",
    ]
    assert ("version torch", torch.__version__) in fingerprint.factors
    assert not any(str(toy.root.parent) in text for pair in fingerprint.factors for text in pair)
    assert fingerprint.digest is not None
    assert len(fingerprint.digest) == 64


def test_a_layout_counts_for_those_who_read_it(toy: Toy) -> None:
    def fingerprints() -> dict[str, str | None]:
        packing = toy.module()

        def fn(x: Tensor, weight: Tensor, layout: str = "plain") -> Tensor:
            return x

        op = Registry().register_op(name="packed", weights=("weight",))(fn)
        op.register_layout("toy", pack=packing.helper.twice, unpack=packing.helper.twice)
        op.register_impl("reader", layouts=("toy",))(fn)
        op.register_impl("other")(fn)
        found = {name: each.fingerprint() for name, each in op.implementations.items()}
        assert not any(each.reason for each in found.values())
        return {name: each.digest for name, each in found.items()}

    before = fingerprints()
    toy.write("helper.py", "from toy_fp.deep import nested\ndef twice(x): return x + x\n")
    after = fingerprints()
    assert before["other"] == after["other"]
    assert before["reader"] != after["reader"]
    assert before["native"] != after["native"]


def test_equal_files_have_equal_fingerprints(toy: Toy) -> None:
    assert toy.fingerprint() == toy.fingerprint()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernel.py", KERNEL.replace("FACTOR = 2", "FACTOR = 3")),
        ("helper.py", "from toy_fp.deep import nested\ndef twice(x): return x + x\n"),
        ("deep/nested.py", "import torch\nCONSTANT = 2\n"),
        ("extension.so", b"compiled"),
    ],
)
def test_every_file_it_rests_on_changes_it(toy: Toy, name: str, text: str | bytes) -> None:
    before = toy.fingerprint().digest
    toy.write(name, text)
    assert toy.fingerprint().digest != before


def test_a_file_it_does_not_import_changes_nothing(toy: Toy) -> None:
    before = toy.fingerprint()
    toy.write("unrelated.py", "CONSTANT = 2\n")
    assert toy.fingerprint() == before


def test_a_library_outside_its_package_can_be_named(toy: Toy, tmp_path: Path) -> None:
    library = tmp_path / "libtoy.so"
    library.write_bytes(b"one")
    before = toy.fingerprint(libraries=[library])
    library.write_bytes(b"two")
    assert toy.fingerprint(libraries=[library]).digest != before.digest
    library.unlink()
    missing = toy.fingerprint(libraries=[library])
    assert missing.digest is None
    assert "libtoy.so cannot be read" in missing.reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (torch.float16, torch.bfloat16),
        ("a", "b"),
        ((1, [2, {"k": {3}}]), (1, [2, {"k": {4}}])),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (torch.ops.aten.add, torch.ops.aten.mul),
    ],
)
def test_closure_constants_are_factors(toy: Toy, one: Any, other: Any) -> None:
    make = toy.module().make
    if isinstance(one, functools.partial):
        one, other = functools.partial(make, 1), functools.partial(make, 2)
    first, second = fingerprint_of(make(one)), fingerprint_of(make(other))
    assert first.digest is not None
    assert second.digest is not None
    assert first.digest != second.digest
    assert fingerprint_of(make(one)).digest == first.digest


@pytest.mark.parametrize("values", [(1, 3), (3, 2)])
def test_each_of_two_closures_of_one_function_is_a_factor(
    toy: Toy, values: tuple[int, int]
) -> None:
    make = toy.module().make

    def both(*constants: int) -> str | None:
        return fingerprint_of(make([make(each) for each in constants])).digest

    assert both(1, 2) == both(1, 2)
    assert both(*values) != both(1, 2)


def test_a_function_in_the_closure_brings_its_own_files(toy: Toy) -> None:
    toy.write("other.py", "def other(x): return x\n")
    make = toy.module().make
    other = importlib.import_module("toy_fp.other").other
    names = [name for name, _ in fingerprint_of(make(1, other)).factors]
    assert "module toy_fp.other" in names


def test_the_predicate_is_a_factor(toy: Toy) -> None:
    toy.write("rules.py", "def rule(x): return True\n")
    module = toy.module()
    rule = importlib.import_module("toy_fp.rules").rule
    names = [name for name, _ in fingerprint_of(module.kernel, supports_args=rule).factors]
    assert "module toy_fp.rules" in names


def test_a_closure_without_stable_text_has_no_fingerprint(
    toy: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    fingerprint = fingerprint_of(toy.module().make(torch.ones(1)))
    assert fingerprint.digest is None
    assert "closed.value` is a Tensor, which has no stable text" in fingerprint.reason
    assert "same: toy has no fingerprint, so it is not cached" in caplog.text


def test_the_warning_comes_once(scale: IrOp, caplog: pytest.LogCaptureFixture) -> None:
    namespace: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
    text = "def f(x: Tensor, weight: Tensor | None, factor: float, width: int | None = None)"
    exec(f"{text} -> Tensor:\n    return x * 3", namespace)  # noqa: S102
    implementation = scale.register_impl("executed")(namespace["f"])
    scale.registry.priorities.set({"scale": "executed"})
    assert scale(torch.ones(1), None, 1.0).item() == 3
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: scale(x, None, 1.0), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 3
    with caplog.at_level(logging.WARNING, "ir_core.fingerprint"):
        fingerprint = implementation.fingerprint()
        assert implementation.fingerprint() == fingerprint
    assert fingerprint.digest is None
    assert "`<string>`, not from a module's file" in fingerprint.reason
    assert [each.name for each in caplog.records].count("ir_core.fingerprint") == 1


def test_a_module_in_a_zip_archive_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "toy.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("toy_fp/__init__.py", "")
        text = "from torch import Tensor\ndef kernel(x: Tensor) -> Tensor:\n    return x\n"
        file.writestr("toy_fp/kernel.py", text)
    monkeypatch.syspath_prepend(str(archive))
    try:
        fingerprint = fingerprint_of(importlib.import_module("toy_fp.kernel").kernel)
    finally:
        forget()
    assert fingerprint.digest is not None
    assert "module toy_fp.kernel" in dict(fingerprint.factors)


SCRIPT = """
import functools, sys, torch
import ir_core as ir
from torch import Tensor

registry = ir.Registry()

@registry.register_op
def double(x: Tensor) -> Tensor:
    return x * 2

@double.register_impl("plain")
def plain(x: Tensor) -> Tensor:
    return x * 4

def make() -> object:
    function = lambda x: x * 5
    function.__annotations__ = {"x": Tensor, "return": Tensor}
    return function

double.register_impl("lambda_")(make())
double.register_impl("partial")(functools.partial(plain.fn))
with torch.inference_mode():
    for provider, value in {"plain": 4, "lambda_": 5, "partial": 4}.items():
        with registry.priorities.override({"double": provider}):
            assert double(torch.ones(1)).item() == value
print([each.fingerprint().digest is None for each in double.implementations.values()])
print(double.implementations["plain"].fingerprint().reason)
"""


@pytest.mark.parametrize("how", ["stdin", "-c", "file"])
def test_scripts_work_and_have_a_fingerprint_only_as_a_file(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"stdin": ["-"], "-c": ["-c", SCRIPT], "file": [str(script)]}[how]
    process = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    absent, reason = process.stdout.splitlines()
    assert absent == str([how != "file"] * 4)
    assert (reason == "") is (how == "file")
    if how != "file":
        assert "`__main__` has no file" in reason
