"""What a trace assumed about a model is told to other processes, and each change of it is named."""

import enum
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tiny_checkpoints import make_model
from torch import Tensor, nn

from ir_passes.cache.dynamo_guards import portable_guards
from ir_passes.cache.model_guards import ModelGuards
from ir_passes.errors import CannotStoreError, CorruptEntryError
from ir_passes.tracing.model_trace import trace_call
from serve_shim.compilation.compilable_model import DYNAMIC_DIMS, example_arguments
from serve_shim.engine.kv_cache import allocate_caches
from serve_shim.engine.parts import cache_layout
from serve_shim.loading import load_model
from serve_shim.models.causal_lm import CausalLM

_HERE = sys.modules[__name__]
_SIZE = 4
BIAS = 0.25


class Mode(enum.Enum):
    """Two ways to end."""

    PLAIN = "plain"
    GATED = "gated"


class Gain(nn.Module):
    """A module with a constant, a class attribute and a parameter."""

    power = 2

    def __init__(self, eps: float, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype).sum() + self.eps**self.power

    def finish(self, x: Tensor) -> Tensor:
        return x + BIAS


class Model(nn.Module):
    """Looks at one thing of every kind that can differ between two models."""

    def __init__(
        self,
        *,
        depth: int = 2,
        eps: float = 1e-5,
        size: int = _SIZE,
        dtype: torch.dtype = torch.float32,
        factor: float = 3.0,
        is_tied: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gain(eps, size, dtype) for _ in range(depth))
        self.options = SimpleNamespace(inner=SimpleNamespace(limit=8))
        self.factors = [1.0, 2.0]
        self.offsets = {"low": -1.0, "high": 1.0}
        self.mode = Mode.PLAIN
        self.scale = scaler(factor)
        self.first = nn.Parameter(torch.ones(_SIZE, _SIZE))
        self.second = self.first if is_tied else nn.Parameter(torch.ones(_SIZE, _SIZE))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        for factor in self.factors:
            x = x * factor
        for offset in self.offsets.values():
            x = x + offset
        x = shifted(self.scale(x)).clamp(max=self.options.inner.limit)
        x = self.layers[0].finish(x @ self.first @ self.second)  # type: ignore[operator]
        return x if self.mode is Mode.PLAIN else x.relu()


def scaler(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def shifted(x: Tensor, by: float = 0.5) -> Tensor:
    return x + by


def _example() -> tuple[Tensor]:
    return (torch.ones(3, _SIZE),)


def _guards_of(model: Callable[..., Any], *args: Any, **kwargs: Any) -> ModelGuards:
    trace = trace_call(model, args or _example(), kwargs)
    guards = portable_guards(trace)
    return ModelGuards.from_json(json.loads(json.dumps(guards.to_json())))


@functools.cache
def _guards(is_tied: bool = False) -> ModelGuards:
    return _guards_of(Model(is_tied=is_tied))


def _set(path: str, value: object) -> Callable[[Model], None]:
    def change(model: Any) -> None:
        *path_to, name = path.split(".")
        for part in path_to:
            model = model[int(part)] if part.isdigit() else getattr(model, part)
        setattr(model, name, value)

    return change


def _patched_method(model: Model) -> None:
    model.layers[0].finish = lambda x: x  # type: ignore[assignment]


def _hooked(model: Model) -> None:
    model.layers[1].register_forward_hook(lambda *_: None)


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "constant": (_set("layers.1.eps", 1e-6), "`self.layers.1.eps` is 1e-06, was 1e-05"),
    "type of a constant": (_set("layers.1.eps", 0), "`self.layers.1.eps` is 0, was 1e-05"),
    "nested attribute": (
        _set("options.inner.limit", 9),
        "`self.options.inner.limit` is 9, was 8",
    ),
    "length of a list": (_set("factors", [1.0]), "`self.factors` has length 1, had 2"),
    "item of a list": (_set("factors", [1.0, 2.5]), "`self.factors[1]` is 2.5, was 2.0"),
    "keys of a dict": (
        _set("offsets", {"low": -1.0, "top": 1.0}),
        "`self.offsets` has the keys 'low', 'top'; they were 'low', 'high'",
    ),
    "value of a dict": (_set("offsets", {"low": -1.0, "high": 2.0}), "is 2.0, was 1.0"),
    "enum": (_set("mode", Mode.GATED), "`self.mode` is Mode.GATED, was Mode.PLAIN"),
    "closure": (_set("scale", scaler(4.0)), "cell_contents` is 4.0, was 3.0"),
    "code of a closure": (
        _set("scale", lambda x: x - 3.0),  # type: ignore[operator]
        "`self.scale` has other code than it had",
    ),
    "method of an instance": (
        _patched_method,
        "`self.layers.0` has an attribute `finish` of its own, had none",
    ),
    "hook": (_hooked, "`self.layers.1._forward_hooks` has length 1, had 0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_model_is_named(name: str) -> None:
    change, expected = CHANGES[name]
    model = Model()
    change(model)
    assert expected in str(_guards().failure(model, _example(), {}))


BUILDS: dict[str, tuple[dict[str, Any], str]] = {
    "depth": ({"depth": 3}, "`self.layers` has the keys '0', '1', '2'; they were '0', '1'"),
    "dtype": (
        {"dtype": torch.bfloat16},
        "`self.layers.0.weight` has dtype torch.bfloat16, had torch.float32",
    ),
    "shape": ({"size": 5}, "`self.layers.0.weight` has shape [5], had [4]"),
    "tied": ({"is_tied": True}, "`self.first`, `self.second` are one tensor, and did not"),
}


@pytest.mark.parametrize("name", BUILDS)
def test_model_built_otherwise_is_named(name: str) -> None:
    options, expected = BUILDS[name]
    assert expected in str(_guards().failure(Model(**options), _example(), {}))


def test_untied_weights_are_named() -> None:
    failure = _guards(is_tied=True).failure(Model(), _example(), {})
    assert failure is not None
    assert "the same object" in failure


def test_weights_that_share_memory_are_named() -> None:
    model = Model()
    with torch.no_grad():
        model.second = nn.Parameter(model.first.view(_SIZE, _SIZE))
    assert "`self.first`, `self.second` share memory" in str(
        _guards().failure(model, _example(), {})
    )


def test_global_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _guards()
    monkeypatch.setattr(_HERE, "BIAS", 0.75)
    assert f"`{__name__}.BIAS` is 0.75, was 0.25" in str(_guards().failure(Model(), _example(), {}))


def test_class_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _guards()
    monkeypatch.setattr(Gain, "power", 3)
    assert "power` is 3, was 2" in str(_guards().failure(Model(), _example(), {}))


def test_default_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _guards()
    monkeypatch.setattr(shifted, "__defaults__", (0.75,))
    assert "shifted.__defaults__[0]` is 0.75, was 0.5" in str(
        _guards().failure(Model(), _example(), {})
    )


def test_redefined_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _guards()

    def other(x: Tensor, by: float = 0.5) -> Tensor:
        return x - by

    monkeypatch.setattr(_HERE, "shifted", other)
    assert "shifted` has other code" in str(_guards().failure(Model(), _example(), {}))


@pytest.mark.parametrize(
    ("kind", "name"), [(Gain, "finish"), (Gain, "forward"), (Model, "forward")]
)
def test_method_replaced_on_a_class_is_named(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _guards()
    monkeypatch.setattr(kind, name, lambda _, x: x)  # type: ignore[misc]
    failure = str(_guards().failure(Model(), _example(), {}))
    is_called = kind is Model
    assert ("other code" if is_called else f"has another method `{name}`") in failure


def test_function_replaced_in_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    guards = _guards_of(function)
    original = torch.nn.functional.silu
    replaced = functools.wraps(original)(lambda x, inplace=False: original(x) + 1)
    monkeypatch.setattr(torch.nn.functional, "silu", replaced)
    assert "torch.nn.functional.silu` has other code" in str(
        guards.failure(function, _example(), {})
    )


def test_what_the_trace_did_not_look_at_may_differ() -> None:
    model = Model().eval()
    model.note = "unseen"  # type: ignore[assignment]
    assert _guards().failure(model, _example(), {}) is None


def test_value_read_from_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "eps"
    file.write_text("1e-5")
    assert _guards().failure(Model(eps=float(file.read_text())), _example(), {}) is None
    file.write_text("2e-5")
    failure = _guards().failure(Model(eps=float(file.read_text())), _example(), {})
    assert failure == "`self.layers.0.eps` is 2e-05, was 1e-05"


def test_default_dtype_is_named() -> None:
    _guards()
    torch.set_default_dtype(torch.float64)
    try:
        failure = _guards().failure(Model(), _example(), {})
    finally:
        torch.set_default_dtype(torch.float32)
    assert failure == "torch's default dtype is torch.float64, was torch.float32"


def test_deterministic_algorithms_are_named() -> None:
    _guards()
    torch.use_deterministic_algorithms(True)
    try:
        failure = _guards().failure(Model(), _example(), {})
    finally:
        torch.use_deterministic_algorithms(False)
    assert failure == "torch's deterministic algorithms is True, was False"


def test_equal_model_built_anew_passes() -> None:
    assert _guards().failure(Model(), _example(), {}) is None


def test_equal_traces_write_equal_guards() -> None:
    first, second = (json.dumps(_guards_of(Model()).to_json()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("value", [float("nan"), -0.0, True, 2**70, b"x", (1, True), None, ...])
def test_constant_is_compared_exactly(value: object) -> None:
    def function(x: Tensor, setting: object) -> Tensor:
        return x + 1 if setting is None else x + 2

    guards = _guards_of(function, *_example(), setting=value)
    assert guards.failure(function, _example(), {"setting": value}) is None
    failure = guards.failure(function, _example(), {"setting": 0})
    assert failure is not None
    assert "`setting`" in failure


def test_dim_that_varies_may_differ_and_others_may_not() -> None:
    model = Model()
    trace = trace_call(model, _example(), dynamic_dims={"x": 0})
    guards = portable_guards(trace)
    assert guards.failure(model, (torch.ones(7, _SIZE),), {}) is None
    assert guards.failure(model, (torch.ones(7, 2 * _SIZE)[:, ::2],), {}) is not None


def test_missing_attribute_is_named() -> None:
    model = Model()
    del model.options
    assert _guards().failure(model, _example(), {}) == "`self.options` is missing"


def test_call_of_another_form_is_named() -> None:
    failure = _guards().failure(Model(), (), {})
    assert failure is not None
    assert "called in another way" in failure


def test_object_without_a_name_is_refused() -> None:
    class Key:
        pass

    table = {Key(): 1.0}

    def function(x: Tensor) -> Tensor:
        for value in table.values():
            x = x + value
        return x

    with pytest.raises(CannotStoreError, match=r"guard .* on .*table.* cannot be stored"):
        _guards_of(function)


def test_source_without_a_path_is_refused() -> None:
    def function(x: Tensor, array: numpy.ndarray) -> Tensor:
        return x + torch.from_numpy(array)

    with pytest.raises(CannotStoreError, match="array"):
        _guards_of(function, *_example(), array=numpy.ones(_SIZE, dtype=numpy.float32))


def test_global_of_no_module_is_refused() -> None:
    names: dict[str, Any] = {"bias": 0.5}
    exec("def function(x):\n    return x + bias\n", names)  # noqa: S102
    with pytest.raises(CannotStoreError, match="the global `bias` is of no module"):
        _guards_of(names["function"])


def test_model_that_changed_after_its_trace_is_refused() -> None:
    model = Model()
    trace = trace_call(model, _example())
    model.first = nn.Parameter(torch.ones(_SIZE, _SIZE + 1))
    with pytest.raises(CannotStoreError, match=r"changed since it was traced: `self\.first`"):
        portable_guards(trace)


def test_decoder_of_the_server_passes_anew_and_its_epsilon_is_named(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    decoder, step = _decoder(tmp_path), example_arguments(64)
    trace = trace_call(decoder, step, dynamic_dims=DYNAMIC_DIMS)
    written = json.dumps(portable_guards(trace).to_json())
    guards = ModelGuards.from_json(json.loads(written))
    other = _decoder(tmp_path)
    assert guards.failure(other, step, {}) is None
    other.layers[1].input_norm.epsilon = 1e-6  # type: ignore[union-attr]
    failure = guards.failure(other, step, {})
    assert failure == "`self.layers.1.input_norm.epsilon` is 1e-06, was 1e-05"


def _decoder(path: Path) -> CausalLM:
    loaded = load_model(str(path), dtype=torch.float32)
    layout = cache_layout(loaded.config, 4, torch.float32)
    loaded.model.bind_kv_cache(allocate_caches(layout, 16))
    return loaded.model


def test_malformed_guards_are_refused() -> None:
    written: Any = _guards().to_json()
    with pytest.raises(CorruptEntryError, match="malformed"):
        ModelGuards.from_json({**written, "nodes": [[[0], [[0, 0]]]]})


_OTHER_PROCESS = """
import json, sys
from tests.ir_passes.cache import guarded_model as subject
from ir_passes.cache.model_guards import ModelGuards
guards = ModelGuards.from_json(json.load(sys.stdin))
failures = [guards.failure(subject.Guarded(eps), subject.example(), {}) for eps in (0.5, 0.25)]
print(json.dumps([failures, "torch._dynamo" in sys.modules, "sympy" in sys.modules]))
"""


def test_another_process_reads_them_without_dynamo() -> None:
    from tests.ir_passes.cache import guarded_model

    model = guarded_model.Guarded(0.5)
    guards = portable_guards(trace_call(model, guarded_model.example()))
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", _OTHER_PROCESS],
        input=json.dumps(guards.to_json()),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    failures, has_dynamo, has_sympy = json.loads(result.stdout)
    assert failures == [None, "`self.eps` is 0.25, was 0.5"]
    assert not has_dynamo
    assert not has_sympy
