"""Owns the count of compilations that torch starts once the server is ready; there must be none."""

import logging
import sys
from typing import Any

logger = logging.getLogger(__name__)


class CompileWatch:
    """Counts compilations from `start` on. Imports nothing of torch's compiler by itself."""

    def __init__(self) -> None:
        self.num_compilations = 0
        self._callbacks: Any = None

    def start(self) -> None:
        """Begin to count, if the process has loaded torch's compiler at all."""
        module: Any = sys.modules.get("torch._dynamo.callback")
        if module is not None and self._callbacks is None:
            self._callbacks = module.callback_handler
            self._callbacks.register_start_callback(self._note)

    def stop(self) -> None:
        """Count no more."""
        if self._callbacks is not None:
            self._callbacks.remove_start_callback(self._note)
            self._callbacks = None

    def _note(self, arguments: Any) -> None:
        self.num_compilations += 1
        logger.error(
            "torch compiles after the server is ready (%s): a request waits for it. Report this "
            "with the settings.",
            arguments,
        )
