"""What the tests of native have in common: native is what runs, on one thread."""

from collections.abc import Iterator

import pytest
import torch

import ir_core as ir


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Waiting for a second thread costs more than it does on tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def native_first() -> Iterator[None]:
    ir.load_plugins()
    with ir.priority({name: ["native"] for name in ir.registry()}):
        yield
