"""The process that owns Ray and the ranks: `python -m serve_shim.ranks.supervisor FD DIRECTORY`.

When the connection that it inherits closes, it ends everything that it started, removes the
directory, and ends. A process of its own, so that its environment can be what Ray needs from the
start, and because Ray may end the process that it is in.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from serve_shim.ranks.group_files import remove_files
from serve_shim.ranks.messages import Begin
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.supervision import LEAVE_TIMEOUT_S, Supervision

_REAP_TIMEOUT_S = 2.0
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Serve the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _adopt_orphans()
    connection = Connection(int(arguments[0]))
    os.set_inheritable(connection.fileno(), False)
    directory = Path(arguments[1])
    mark = ProcessMark.inherited(os.environ)
    try:
        begin: Begin = connection.recv()
        os.chdir(directory)
        supervision = Supervision(connection, begin, directory, mark)
        threading.Thread(
            target=_listen, args=(connection, supervision, begin, directory, mark), daemon=True
        ).start()
        supervision.run()
    except EOFError:
        pass
    finally:
        _end_everything(directory, mark)
    return 0


def _listen(
    connection: Connection,
    supervision: Supervision,
    begin: Begin,
    directory: Path,
    mark: ProcessMark,
) -> None:
    """Pass requests on until the connection closes; then end all, whatever the others do."""
    with suppress(EOFError, OSError):
        while True:
            supervision.submit(connection.recv())
    if begin.options.ray_address is not None:
        leaving = threading.Thread(target=supervision.leave, daemon=True)
        leaving.start()
        leaving.join(LEAVE_TIMEOUT_S)
    _end_everything(directory, mark)
    os._exit(0)


def _end_everything(directory: Path, mark: ProcessMark) -> None:
    mark.end_all(but=[os.getpid()])
    _reap_children()
    remove_files(directory)


def _adopt_orphans() -> None:
    """Become the parent of what Ray's processes leave: in a container nobody else may reap it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap_children() -> None:
    deadline = time.monotonic() + _REAP_TIMEOUT_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
