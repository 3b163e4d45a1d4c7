"""Starts fake servers as processes of their own, and makes sure that none is left."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0


class ServerProcess:
    """One server; use as a context manager."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.serve_shim.server.fake_server", json.dumps(options)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)

    @property
    def log(self) -> str:
        """Everything on stderr so far."""
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        found: list[str] = []

        def listening() -> bool:
            found[:] = re.findall(r"Starting serve-shim server on (\S+)", self.log)
            return bool(found)

        self.wait_for(listening)
        return found[0]

    def client(self) -> httpx.Client:
        """An HTTP client of this server."""
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False)

    def wait_ready(self, client: httpx.Client) -> None:
        """Returns when requests are served."""
        self.wait_for(lambda: client.get("/readyz").status_code == 200)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition` holds; fails when the process ends first, or in the end."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def exit_code(self, within_s: float = DEADLINE_S) -> int:
        """The exit code, which must come within so many seconds."""
        code = self.process.wait(within_s)
        self._reader.join(DEADLINE_S)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
        self.process.stderr.close()
