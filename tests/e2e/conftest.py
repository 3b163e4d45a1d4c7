"""Real servers on the embedded model, one per dtype, shared by the whole run.

Two are compiled, as by default, and one runs eagerly.
"""

from collections.abc import Iterator

import pytest
from server_process import Server, running


@pytest.fixture(scope="session")
def float32_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_path = tmp_path_factory.mktemp("float32") / "server.log"
    yield from running(
        log_path,
        "--dtype",
        "float32",
        "--ir-op-priority.rms_norm=aiter,vllm_c",
        "--log-level",
        "DEBUG",
    )


@pytest.fixture(scope="session")
def bfloat16_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_path = tmp_path_factory.mktemp("bfloat16") / "server.log"
    settings = ("--dtype", "bfloat16", "--quantization", "none", "--enforce-eager")
    yield from running(log_path, *settings)


@pytest.fixture(scope="session")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from running(tmp_path_factory.mktemp("default") / "server.log")
