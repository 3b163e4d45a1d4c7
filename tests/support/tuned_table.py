"""A process in which nothing has been tuned yet, for tests that put choices in force."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

import ir_core as ir
from ir_core.autotuning.table import TunedTable


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process began anew."""
    monkeypatch.setattr(ir.registry().priorities, "_tuned", TunedTable())
    ir.registry().forget_choices()


@contextmanager
def own_table() -> Generator[None]:
    """What is tuned within is in force in no other test."""
    with pytest.MonkeyPatch.context() as patch:
        forget(patch)
        yield
    ir.registry().forget_choices()
