"""What the command changes in its process, put back after each test."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import ir_core as ir
from serve_shim.cli.log import LOGGERS


@pytest.fixture(autouse=True)
def restored_process() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(log, log.handlers[:], log.level, log.propagate) for log in loggers]
    yield
    for log, handlers, level, propagate in before:
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate = propagate
    ir.set_priority({})


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own: a start makes directories there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SERVE_SHIM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
