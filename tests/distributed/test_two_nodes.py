"""A server whose ranks are on two nodes: the tokens of one rank, and an end when a node is lost."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import command, reference
from two_nodes import HEAD, PORT, TwoNodes, can_make_namespaces

SERVER_PORT = 8124
TIMEOUT_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    obstacle = can_make_namespaces()
    if obstacle:
        pytest.skip(obstacle)
    # Short: Ray's sockets are below it.
    with TwoNodes(tmp_path_factory.mktemp("n")) as both:
        yield both


class Server:
    """A server on the head, asked from there."""

    def __init__(self, nodes: TwoNodes, log_path: Path, *arguments: str) -> None:
        self._nodes = nodes
        self._log_path = log_path
        flags = ("--tp", "2", "--ray-address", f"{HEAD}:{PORT}", "--port", str(SERVER_PORT))
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                nodes.inside(0, *command(*flags, *arguments)),
                env=os.environ | nodes.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.ask("/health") is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer of a request that succeeded."""
        curl = ["curl", "-sf", f"http://127.0.0.1:{SERVER_PORT}{path}"]
        if body is not None:
            curl += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(self._nodes.inside(0, *curl), capture_output=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("flags", [("--enforce-eager",), ()])
def test_ranks_on_two_nodes_give_the_reference_and_end_with_a_node(
    nodes: TwoNodes, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    server = Server(nodes, tmp_path / "log", "--dtype", "float32", *flags)
    try:
        server.wait_ready()
        assert "Steps reach the ranks by calls of Ray" in server.log
        for entry in reference("completions")[:2]:
            body = {
                "prompt": entry["prompt"],
                "max_tokens": len(entry["greedy_ids"]),
                "temperature": 0,
                "skip_special_tokens": False,
                "return_token_ids": True,
            }
            answer = server.ask("/v1/completions", body)
            assert answer is not None, server.log
            assert answer["choices"][0]["token_ids"] == entry["greedy_ids"]
        started = time.monotonic()
        nodes.kill(1)
        assert server.process.wait(40) == 5
        print(f"exit {time.monotonic() - started:.1f} s after a node was lost")
        assert "rank" in server.log.rstrip().splitlines()[-1]
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(10)
