"""Owns the answer to SIGUSR1: where every thread is, and which kernels have run.

The stacks are written by C code, so that they appear even where Python hangs.
"""

import asyncio
import faulthandler
import logging
import signal

from serve_shim.server.selections import selections_report

_log = logging.getLogger(__name__)


def install_diagnosis() -> None:
    """From now on SIGUSR1 writes all stacks to stderr and logs the executed selections.

    Needs the main thread's loop.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _log_selections)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def _log_selections() -> None:
    _log.warning("SIGUSR1. %s", selections_report())
