"""What the command changes in its process, put back after each test."""

import logging
from collections.abc import Iterator

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
