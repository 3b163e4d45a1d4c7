"""Fixtures: a service with a fake engine, and a client that speaks ASGI to it."""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from serve_shim.engine.status import StartupStatus
from serve_shim.server.app import build_app
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client
from .fake_engine import FakeEngine
from .server_process import ServerProcess


@pytest.fixture
def make_client() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(service: Service, **options: Any) -> Client:
        clients.append(Client(build_app(service, **options)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def service() -> Service:
    """A service without an engine, as it is while the server starts."""
    return Service(Settings(model="fake"), StartupStatus())


@pytest.fixture
def engine(service: Service) -> FakeEngine:
    """The engine of `service`, ready."""
    fake = FakeEngine(sink=service.metrics.sink)
    service.attach(fake)
    return fake


@pytest.fixture
def client(service: Service, engine: FakeEngine, make_client: Callable[..., Client]) -> Client:
    """A client of a server that is ready."""
    return make_client(service)


@pytest.fixture(scope="session")
def running_server() -> Iterator[ServerProcess]:
    """A server process with the fake engine, shared by tests that change nothing about it."""
    with ServerProcess(step_s=0.001) as server, server.client() as client:
        server.wait_ready(client)
        yield server


class Records(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def recorded(name: str) -> Generator[list[logging.LogRecord]]:
    """All that a logger and those below it log, whether or not it reaches the root logger."""
    logger, handler = logging.getLogger(name), Records()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.records
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def server_log() -> Iterator[list[logging.LogRecord]]:
    """What the server's modules log."""
    with recorded("serve_shim.server") as records:
        yield records
