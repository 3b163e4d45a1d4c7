"""Server processes: started as a user starts them, stopped by a signal, no process left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
REFERENCE = Path(__file__).parents[1] / "data" / "smollm2_greedy.json"


@dataclass(frozen=True, slots=True)
class Server:
    """A server process, its address and the file its output goes to."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON of a 200 answer."""
        answer = httpx.post(self.url + path, json=body, timeout=100, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, trust_env=False)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            try:
                if self.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready after {READY_TIMEOUT_S} s:\n{self.log}")

    def stop(self) -> int:
        """Exit code after SIGTERM; asserts that nothing of it is left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise AssertionError(f"did not stop:\n{self.log}") from None
        assert not [child for child in children if child.is_running()]
        return code


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "serve_shim", *arguments]


def start(log_path: Path, *arguments: str, env: dict[str, str] | None = None) -> Server:
    port = free_port()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command(*arguments, "--port", str(port)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | (env or {}),
        )
    return Server(process, f"http://127.0.0.1:{port}", log_path)


def running(log_path: Path, *arguments: str) -> Iterator[Server]:
    """A ready server for the length of a fixture; it must end with 0."""
    server = start(log_path, *arguments)
    try:
        server.wait_ready()
        yield server
    except BaseException:
        server.process.kill()
        server.process.wait(10)
        raise
    assert server.stop() == 0, server.log


def run_to_exit(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, check=False
    )


def reference(kind: str) -> Sequence[dict[str, Any]]:
    return json.loads(REFERENCE.read_text())[kind]
