"""Compilations of torch are counted from the moment the server is ready, and only then."""

import logging
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

from serve_shim.compilation.watch import CompileWatch


@pytest.fixture
def watch() -> Iterator[CompileWatch]:
    import_module("torch._dynamo.callback")
    torch._dynamo.reset()
    watch = CompileWatch()
    yield watch
    watch.stop()


def compile_something(factor: float) -> None:
    torch.compile(lambda x: x * factor, backend="eager")(torch.ones(2))


def test_compilation_after_the_start_is_counted_and_logged(
    watch: CompileWatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_something(2.0)
    assert watch.num_compilations == 0
    watch.start()
    with caplog.at_level(logging.ERROR):
        compile_something(3.0)
    assert watch.num_compilations == 1
    assert "after the server is ready" in caplog.text


def test_a_compiler_that_is_loaded_only_later_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = ("torch._dynamo.callback", "torch._dynamo.convert_frame")
    watch = CompileWatch()
    with monkeypatch.context() as patch:
        for name in modules:
            patch.delitem(sys.modules, name)
        watch.start()
        assert watch.num_compilations == 0
    torch._dynamo.reset()
    compile_something(5.0)
    assert watch.num_compilations == 1
    watch.stop()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert watch.num_compilations == 1


def test_nothing_is_counted_after_the_stop(watch: CompileWatch) -> None:
    watch.start()
    watch.stop()
    compile_something(4.0)
    assert watch.num_compilations == 0
