"""Owns the process's signals: the first asks for an orderly end, the second ends it at once."""

import asyncio
import logging
import os
import signal
import sys
from typing import NoReturn

from serve_shim.startup import remove_temporary_directories

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger(__name__)


class StopSignals:
    """`first` becomes the number of the first SIGINT or SIGTERM; needs the main thread's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = self._loop.create_future()

    def install(self) -> None:
        """Takes the signals over; they stay so until the process ends."""
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.first.done():
            _log.warning("%s again: ending at once.", name)
            leave_now(128 + number)
        _log.info("%s: shutting down; once more ends at once.", name)
        self.first.set_result(number)


def leave_now(code: int) -> NoReturn:
    """Ends the process without waiting for threads that nobody can interrupt."""
    remove_temporary_directories()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
