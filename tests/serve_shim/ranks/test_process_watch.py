import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from serve_shim.ranks.process_watch import ProcessWatch, describe_exit

# Starts a child that is not ours, prints its id, reaps it, and then waits to be ended.
_PARENT = (
    "import subprocess, sys\n"
    "child = subprocess.Popen(['sleep', '30'])\n"
    "print(child.pid, flush=True)\n"
    "child.wait()\n"
    "print('reaped', flush=True)\n"
    "sys.stdin.read()"
)


def _wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@contextmanager
def _watched(*command: str) -> Generator[tuple[subprocess.Popen[bytes], ProcessWatch]]:
    with subprocess.Popen(command) as process:
        watch = ProcessWatch(process.pid)
        try:
            yield process, watch
        finally:
            process.kill()
            watch.close()


def test_watch_tells_running_from_stopped() -> None:
    with _watched("sleep", "30") as (_, watch):
        assert (watch.state(), watch.is_gone, watch.how_it_ended()) == ("running", False, "")
        watch.send(signal.SIGSTOP)
        assert _wait_until(lambda: watch.state() == "stopped")


def test_watch_sees_a_child_that_nobody_has_reaped() -> None:
    with _watched("sleep", "30") as (process, watch):
        os.kill(process.pid, signal.SIGTERM)
        assert _wait_until(lambda: watch.is_gone)
        assert watch.how_it_ended() == "killed by SIGTERM"
        assert process.wait(5) == -signal.SIGTERM  # it is still there to be reaped


def test_watch_tells_exit_code() -> None:
    with _watched("sh", "-c", "exit 3") as (_, watch):
        assert _wait_until(lambda: watch.is_gone)
        assert watch.how_it_ended() == "exit code 3"


def test_watch_of_what_is_no_child_tells_its_end() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        watch = ProcessWatch(int(parent.stdout.readline()))
        watch.send(signal.SIGKILL)
        assert parent.stdout.readline() == "reaped\n"
        how = watch.how_it_ended()
        is_gone = watch.is_gone
        watch.close()
        parent.communicate("", timeout=5)
    assert is_gone
    assert how in {"killed by SIGKILL", ""}  # kernels before 6.15 do not tell


def test_watch_refuses_what_is_not_there() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        ProcessWatch(process.pid)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (-9, "killed by SIGKILL"),
        (-64, "killed by SIGRTMAX"),
        (-99, "killed by signal 99"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
