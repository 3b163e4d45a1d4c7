"""A source file that a trace read is named once it has changed; nothing is imported for that."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ir_core as ir
from ir_passes.cache.op_code import is_op_code
from ir_passes.cache.traced_sources import changed_source, traced_sources
from ir_passes.errors import CannotStoreError
from ir_passes.tracing.model_trace import trace_call
from tests.ir_passes.cache import guarded_model

_NAME = "tests.ir_passes.cache.guarded_model"


def _sources(function: Callable[..., Any]) -> dict[str, str]:
    return traced_sources(trace_call(function, guarded_model.example()))


def _package(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = root / "changing_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(root)
    return package / "layers.py"


def test_modules_of_inlined_code_are_recorded() -> None:
    model = guarded_model.Guarded(0.5)

    def function(x: torch.Tensor) -> torch.Tensor:
        return model.forward(x)

    digest = hashlib.sha256(Path(guarded_model.__file__).read_bytes()).hexdigest()
    assert _sources(function) == {
        _NAME: digest,
        __name__: hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }


def test_methods_of_ops_are_left_out() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ir.ops.silu_and_mul(x)

    trace = trace_call(function, guarded_model.example())
    codes = trace.capture.graph_capture_output.traced_code
    assert any(is_op_code(each) for each in codes)
    assert list(traced_sources(trace)) == [__name__]


def test_code_that_claims_to_be_of_an_op_is_refused() -> None:
    names: dict[str, Any] = {}
    exec(compile("def function(x):\n    return x + 1\n", "<ir op fake>", "exec"), names)  # noqa: S102
    with pytest.raises(CannotStoreError, match="<ir op fake>"):
        _sources(names["function"])


def test_code_without_a_file_is_refused() -> None:
    names: dict[str, Any] = {}
    exec("def function(x):\n    return x + 1\n", names)  # noqa: S102
    with pytest.raises(CannotStoreError, match="<string>"):
        _sources(names["function"])


def test_unchanged_sources_pass() -> None:
    assert changed_source(_sources(guarded_model.Guarded(0.5))) is None


def test_changed_source_of_an_imported_module_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "imported.py"
    file.write_text("x = 1\n")
    module = ModuleType("imported_module")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    recorded = {module.__name__: hashlib.sha256(file.read_bytes()).hexdigest()}
    assert changed_source(recorded) is None
    file.write_text("x = 2\n")
    assert changed_source(recorded) == "module `imported_module` has changed"


def test_module_that_is_not_imported_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _package(tmp_path, monkeypatch)
    recorded = {"changing_package.layers": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert changed_source(recorded) is None
    file.write_text("x = 2\n")
    assert changed_source(recorded) == "module `changing_package.layers` has changed"
    assert "changing_package" not in sys.modules


def test_missing_module_is_named() -> None:
    assert changed_source({"nowhere.at_all": "0"}) == "module `nowhere.at_all` is not there"
