"""Owns the thread that steps the core and the signs of its progress; refuses to know consumers.

The thread sleeps on a condition while there is nothing to do. An exception that leaves the core
ends it: the loop is dead and says why.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from serve_shim.engine.core import EngineCore
from serve_shim.engine.delivery import Delivery
from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.request import Request
from serve_shim.engine.step_clock import StepPhase

logger = logging.getLogger(__name__)

_RECHECK_S = 1.0


class _Order(NamedTuple):
    request: Request
    is_abort: bool


class StepLoop:
    """Runs `core` in a daemon thread and passes what it delivers to `deliver`, on that thread.

    `on_end` is called there once, with the exception that ended the loop or None after `stop`.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        deliver: Callable[[list[Delivery]], None],
        on_end: Callable[[BaseException | None], None],
        watchdog_timeout_s: float,
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._on_end = on_end
        self._watchdog_timeout_s = watchdog_timeout_s
        self._changed = threading.Condition()
        self._orders: deque[_Order] = deque()
        self._is_stopping = False
        self._is_busy = False
        self._progressed_at = time.monotonic()
        self._death: BaseException | None = None
        self._stats = core.stats()
        self._thread = threading.Thread(target=self._run, name="engine-step-loop", daemon=True)

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request for the next step."""
        self._order(_Order(request, is_abort=False))

    def abort(self, request: Request) -> None:
        """End a request before the next step; nothing happens if it is over."""
        self._order(_Order(request, is_abort=True))

    def stop(self, timeout_s: float) -> bool:
        """Finish the current step, then end; whether that happened within the time."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stats(self) -> EngineStats:
        """The state after the last step."""
        return self._stats

    def is_healthy(self) -> tuple[bool, str]:
        """Whether the thread lives and, while it has work, advanced lately; and why not."""
        if self._death is not None:
            return False, f"the step loop ended: {type(self._death).__name__}: {self._death}"
        if not self._thread.is_alive():
            return False, "the step loop is not running"
        stalled_s = time.monotonic() - self._progressed_at
        if self._is_busy and stalled_s > self._watchdog_timeout_s:
            return False, f"the step loop has work but made no progress for {stalled_s:.0f} s"
        return True, ""

    def _order(self, order: _Order) -> None:
        with self._changed:
            self._orders.append(order)
            if not self._is_busy:
                self._is_busy, self._progressed_at = True, time.monotonic()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._take_orders()
                deliveries = self._core.step()
                self._stats = self._core.stats()
                if deliveries:
                    self._deliver(deliveries)
                self._core.clock.lap(StepPhase.DELIVER)
        except BaseException as error:
            self._death = error
            logger.exception("the engine's step loop ended; all requests in flight fail")
        self._on_end(self._death)

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when it is to end."""
        with self._changed:
            while not (self._orders or self._core.has_work or self._is_stopping):
                self._is_busy = False
                # Bounded, since a forgotten stream's finaliser may order an abort on this very
                # thread, between the check above and the wait: nobody hears its `notify`.
                self._changed.wait(_RECHECK_S)
            self._is_busy, self._progressed_at = True, time.monotonic()
            return not self._is_stopping

    def _take_orders(self) -> None:
        while self._orders:
            request, is_abort = self._orders.popleft()
            if is_abort:
                self._core.abort(request)
            else:
                self._core.submit(request)
