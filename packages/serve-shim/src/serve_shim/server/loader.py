"""Owns the thread that builds the engine while the event loop already answers."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Loader(Generic[T]):
    """Runs `build` in a daemon thread; `result` is its outcome, on the loop that made this."""

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="engine-start", daemon=True)

    def start(self) -> None:
        """Begins to build."""
        self._thread.start()

    def _run(self) -> None:
        try:
            built = self._build()
        except BaseException as error:
            self._report(None, error)
        else:
            self._report(built, None)

    def _report(self, built: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for this start any more
            self._loop.call_soon_threadsafe(self._settle, built, error)

    def _settle(self, built: T | None, error: BaseException | None) -> None:
        if self.result.done():
            return
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(built)  # pyright: ignore[reportArgumentType]
