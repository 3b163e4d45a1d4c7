import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from serve_shim.ranks.process_mark import ProcessMark


@contextmanager
def _marked(mark: ProcessMark) -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "30"], env={**os.environ, **mark.environment}) as process:
        try:
            # The environment is the child's own once it has replaced the program.
            deadline = time.monotonic() + 5
            while not mark.is_on(process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def test_mark_finds_processes_that_inherited_it() -> None:
    mark = ProcessMark()
    with _marked(mark) as process:
        assert mark.processes() == [process.pid]
        assert ProcessMark().processes() == []


def test_mark_ends_what_carries_it() -> None:
    mark = ProcessMark()
    with _marked(mark) as process:
        mark.end_all()
        assert mark.processes() == []
        assert process.wait(5) == -9


def test_mark_spares_what_it_is_told_to() -> None:
    mark = ProcessMark()
    with _marked(mark) as spared, _marked(mark) as ended:
        mark.end_all(but=[spared.pid])
        assert mark.processes() == [spared.pid]
        assert ended.wait(5) == -9


def test_mark_of_a_process_is_read_from_its_environment() -> None:
    mark = ProcessMark()
    code = (
        "import os\nfrom serve_shim.ranks.process_mark import ProcessMark\n"
        "assert ProcessMark.inherited(os.environ).is_on(os.getpid())"
    )
    environment = {**os.environ, **mark.environment}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=30)
