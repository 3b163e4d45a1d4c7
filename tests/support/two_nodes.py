"""Two nodes of a Ray cluster as two network namespaces of this machine, joined by a cable."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

HEAD, OTHER = "10.231.7.1", "10.231.7.2"
PORT = 6479
_START_TIMEOUT_S = 60.0


def can_make_namespaces() -> str:
    """Empty if this machine lets us, else why not."""
    if shutil.which("ip") is None:
        return "there is no `ip` here"
    done = subprocess.run(["ip", "netns", "add", "ir-probe"], capture_output=True, check=False)
    if done.returncode != 0:
        return f"no network namespace: {done.stderr.decode().strip()}"
    _run("ip", "netns", "del", "ir-probe")
    return ""


class TwoNodes:
    """A context in which the head of a cluster and another node live, with one CPU each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names = [f"ir-{secrets.token_hex(3)}" for _ in range(2)]
        self._nodes: list[subprocess.Popen[bytes]] = []
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def __enter__(self) -> Self:
        try:
            self._connect()
            ray = ("--num-cpus=1", "--disable-usage-stats", "--block")
            address = f"{HEAD}:{PORT}"
            head = ("--head", f"--port={PORT}", "--include-dashboard=false")
            temporary = f"--temp-dir={self._directory / 'ray'}"
            self._start(0, f"--node-ip-address={HEAD}", *head, temporary, *ray)
            self._wait_for_port()
            self._start(1, f"--address={address}", f"--node-ip-address={OTHER}", *ray)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def inside(self, node: int, *command: str) -> list[str]:
        """A command line that runs on a node."""
        return ["ip", "netns", "exec", self._names[node], *command]

    def kill(self, node: int) -> None:
        """End every process of a node at once, as if it lost its power."""
        for pid in self._processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for node in (0, 1):
            self.kill(node)
        for process in self._nodes:
            process.wait(10)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def log(self, node: int) -> str:
        return (self._directory / f"node-{node}.log").read_text()

    def _connect(self) -> None:
        for name in self._names:
            _run("ip", "netns", "add", name)
        ends = [f"{name[:10]}-v" for name in self._names]
        _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(self._names, ends, (HEAD, OTHER), strict=True):
            _run("ip", "link", "set", end, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            _run("ip", "-n", name, "link", "set", end, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def _start(self, node: int, *arguments: str) -> None:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
        with (self._directory / f"node-{node}.log").open("wb") as log:
            self._nodes.append(
                subprocess.Popen(
                    self.inside(node, *ray),
                    env=os.environ | self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait_for_port(self) -> None:
        probe = f"import socket; socket.create_connection(('{HEAD}', {PORT}), 1)"
        deadline = time.monotonic() + _START_TIMEOUT_S
        command = self.inside(0, sys.executable, "-c", probe)
        while subprocess.run(command, capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise AssertionError(self.log(0))
            time.sleep(0.2)

    def _processes(self, node: int) -> list[int]:
        done = subprocess.run(
            ["ip", "netns", "pids", self._names[node]], capture_output=True, check=False
        )
        return [int(pid) for pid in done.stdout.split()]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
