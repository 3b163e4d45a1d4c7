"""Servers whose model is spread over ranks; of each nothing may be left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_server import RankServer, StartServer
from tiny_checkpoints import MAKERS


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama with random weights that any of 2 to 4 ranks can share."""
    torch.manual_seed(0)
    directory: Path = tmp_path_factory.mktemp("llama")
    MAKERS["llama"]().save_pretrained(directory)
    return str(directory)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers; kills what a test leaves, and fails if anything of one then remains."""
    servers: list[RankServer] = []

    def start(*arguments: str, **options: object) -> RankServer:
        server = RankServer.start(tmp_path / f"log-{len(servers)}", *arguments, **options)  # pyright: ignore[reportArgumentType]
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.end()
