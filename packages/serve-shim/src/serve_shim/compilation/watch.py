"""Owns the count of compilations that torch starts once a process serves; there must be none."""

import logging
import sys
from typing import Any

logger = logging.getLogger(__name__)


class CompileWatch:
    """Counts compilations from `start` on. Imports nothing of torch's compiler by itself."""

    def __init__(self) -> None:
        self._num_noted = 0
        self._callbacks: Any = None
        self._is_counting = False

    @property
    def num_compilations(self) -> int:
        """How many there were: frames, if torch's compiler was not even loaded at the start."""
        frames: Any = sys.modules.get("torch._dynamo.convert_frame")
        if not self._is_counting or self._callbacks is not None or frames is None:
            return self._num_noted
        return int(frames.FRAME_COUNTER)

    def start(self) -> None:
        """Begin to count."""
        self._is_counting = True
        module: Any = sys.modules.get("torch._dynamo.callback")
        if module is not None and self._callbacks is None:
            self._callbacks = module.callback_handler
            self._callbacks.register_start_callback(self._note)

    def stop(self) -> None:
        """Count no more."""
        self._num_noted = self.num_compilations
        self._is_counting = False
        if self._callbacks is not None:
            self._callbacks.remove_start_callback(self._note)
            self._callbacks = None

    def _note(self, arguments: Any) -> None:
        self._num_noted += 1
        logger.error(
            "torch compiles after the server is ready (%s): a request waits for it. Report this "
            "with the settings.",
            arguments,
        )
