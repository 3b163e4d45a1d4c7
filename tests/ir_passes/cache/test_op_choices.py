"""A stored choice of implementations holds only while everything that it rests on is the same."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from ir_core import Registry
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.table import TunedChoice
from ir_passes.cache.op_choices import OpChoices
from ir_passes.errors import CannotStoreError

FACTOR = 2.0


def make(
    factor: float = FACTOR, declared: Mapping[str, Any] | None = None, **options: Any
) -> Registry:
    registry = Registry()

    @registry.register_op(**declared or {})
    def scale(x: Tensor) -> Tensor:
        return x * FACTOR

    def fast(x: Tensor) -> Tensor:
        return x * factor

    def takes(x: Tensor) -> bool:
        return x.dtype.is_floating_point

    given: dict[str, Any] = {"supports_args": takes, **options}
    scale.register_impl("fast", **given)(fast)
    registry.priorities.set({"scale": ["fast"]})
    return registry


def choices(registry: Registry) -> OpChoices:
    return OpChoices.of(["scale"], (), registry)


@pytest.fixture
def stored() -> OpChoices:
    return OpChoices.from_json(choices(make()).to_json())


def test_equal_registry_made_anew(stored: OpChoices) -> None:
    assert stored.failure(make()) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: make(factor=3.0), "fast.factor` of provider `fast` of `scale` has changed"),
        (lambda: make(supported=(False, "no such unit")), "`fast` of `scale` is no such unit, and"),
        (lambda: make(supports_args=None), "takes.__defaults__` of provider `fast`"),
        (lambda: make(batch_invariant=True), "`batch_invariant` of provider `fast`"),
        (lambda: preferring(make(), {}), "in the order ['native'], and were in ['fast', 'native']"),
        (Registry, "op `scale` is not registered"),
    ],
)
def test_each_change_is_named(
    stored: OpChoices, change: Callable[[], Registry], named: str
) -> None:
    assert named in str(stored.failure(change()))


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"splits": True}, "`splits` of op `scale` is declared as True, was False"),
        ({"allow_inplace": True}, "`inplace` of op `scale` is declared as (Tensor(a0!) x)"),
        ({"mutates": ("x",)}, "`schema` of op `scale` is declared as (Tensor(a0!) x)"),
        ({"activations": ()}, "`activations` of op `scale` is declared as (), was ('x',)"),
        ({"token_dims": {"x": 1}}, "`token dims` of op `scale` is declared as [('x', [1])]"),
        ({"opaque": True}, "`opaque` of provider `native` of `scale` has changed"),
        ({"batch_invariant": True}, "`batch_invariant` of provider `native`"),
    ],
)
def test_op_declared_otherwise_is_named(
    stored: OpChoices, declared: dict[str, Any], named: str
) -> None:
    assert named in str(stored.failure(make(declared=declared)))


def test_fake_of_an_op_is_among_what_it_rests_on(stored: OpChoices) -> None:
    registry = make()
    registry["scale"].register_fake(lambda x: x.new_empty(x.shape))
    assert "`value fake` of provider `native` of `scale`" in str(stored.failure(registry))


def test_global_that_is_set_later_is_named(
    stored: OpChoices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 4.0)
    assert f"`global {__name__}.FACTOR` of provider `native` of `scale`" in str(
        stored.failure(make(factor=2.0))
    )


def preferring(registry: Registry, lists: dict[str, list[str]]) -> Registry:
    registry.priorities.set(lists)
    return registry


def tuned(registry: Registry, provider: str) -> Registry:
    choice = TunedChoice("scale", "x: float32[*, 4]", "fast", provider, (), ())
    registry.priorities.adopt_tuned([choice])
    return registry


def test_choices_that_timing_changed_are_conditions() -> None:
    stored = OpChoices.from_json(choices(tuned(make(), "native")).to_json())
    assert stored.failure(tuned(make(), "native")) is None
    assert stored.failure(make()) == (
        "timing prefers the priority's for `scale` with x: float32[*, 4], and preferred native"
    )


def test_choices_that_timing_has_not_changed_are_none(stored: OpChoices) -> None:
    assert stored.failure(tuned(make(), "fast")) is None
    assert "timing prefers native for `scale`" in str(stored.failure(tuned(make(), "native")))


def ranged(registry: Registry, end: int) -> Registry:
    later = (LaterRange(end + 1, "fast"),)
    choice = TunedChoice("scale", "x: float32[*, 4]", "fast", "native", (), (), later=later)
    registry.priorities.adopt_tuned([choice])
    return registry


def test_ranges_are_conditions_with_their_ends() -> None:
    stored = OpChoices.from_json(json.loads(json.dumps(choices(ranged(make(), 8)).to_json())))
    assert stored.failure(ranged(make(), 8)) is None
    assert stored.failure(ranged(make(), 64)) == (
        "timing prefers 1..64: native, 65..: fast for `scale` with x: float32[*, 4], "
        "and preferred 1..8: native, 9..: fast"
    )
    assert str(stored.failure(tuned(make(), "native"))).startswith("timing prefers native for")


def test_changed_file_of_an_implementation(stored: OpChoices) -> None:
    module = next(name for name in stored.files if name.startswith("module "))
    files = {**stored.files, module: "0" * 64}
    changed = OpChoices(stored.declared, stored.ops, files, stored.tuned)
    assert changed.failure(make()) == f"{module} has changed, on which an op rests"


def test_changed_library_of_an_implementation(tmp_path: Path) -> None:
    library = tmp_path / "libtoy.so"
    library.write_bytes(b"1")
    stored = choices(make(libraries=[library]))
    library.write_bytes(b"2")
    assert "`library libtoy.so` of provider `fast`" in str(
        stored.failure(make(libraries=[library]))
    )


def test_helper_module_is_among_the_files(stored: OpChoices) -> None:
    assert f"module {__name__}" in stored.files


def test_implementation_without_a_fingerprint_is_refused() -> None:
    registry = make()
    lock = threading.Lock()

    def locked(x: Tensor) -> Tensor:
        with lock:
            return x * 2

    registry["scale"].register_impl("locked")(locked)
    registry.priorities.set({"scale": ["locked"]})
    with pytest.raises(CannotStoreError, match="`locked` of `scale` has no fingerprint"):
        choices(registry)
