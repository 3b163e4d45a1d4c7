"""Owns the way of outputs to one consumer on an event loop; refuses to let it slow the engine.

Outputs wait here until they are asked for, merged into one, so a slow consumer gets fewer and
larger deltas and the memory is bounded by the text itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType

from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprobs


class OutputStream(AsyncGenerator[RequestOutput, None]):
    """Iterates over a request's outputs; `abort` is called when the consumer gives up early.

    Belongs to `loop`: `put` and `fail` must be called there. Only one task may iterate.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, abort: Callable[[], None]) -> None:
        self.loop = loop
        self._abort = abort
        self._pending: list[RequestOutput] = []
        self._error: BaseException | None = None
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Add an output for the consumer."""
        self._pending.append(output)
        self._is_over = self._is_over or output.finished
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error, after what was put before; the first error stays."""
        if not self._is_over:
            self._error, self._is_over = error, True
        self._wake()

    async def asend(self, value: None) -> RequestOutput:
        """The next output: all that came since the last one, as one."""
        while not self._pending:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._is_over:
                raise StopAsyncIteration
            await self._wait()
        outputs, self._pending = self._pending, []
        return outputs[0] if len(outputs) == 1 else merge_outputs(outputs)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> RequestOutput:
        """Abort the request and raise."""
        self._give_up()
        raise typ

    async def aclose(self) -> None:
        """Abort the request unless it is over, and drop what was not consumed."""
        self._give_up()

    def __del__(self) -> None:
        """Abort a request whose consumer forgot it."""
        self._give_up()

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up(self) -> None:
        self._pending = []
        if not self._is_over:
            self._is_over = True
            self._abort()


def merge_outputs(outputs: list[RequestOutput]) -> RequestOutput:
    """One output that says what several successive ones said."""
    by_index: dict[int, list[CompletionDelta]] = {}
    for output in outputs:
        for delta in output.deltas:
            by_index.setdefault(delta.index, []).append(delta)
    first, last = outputs[0], outputs[-1]
    return RequestOutput(
        first.request_id,
        first.prompt_token_ids,
        tuple(_merge_deltas(deltas) for deltas in by_index.values()),
        first.prompt_logprobs,
        first.num_cached_tokens,
        last.finished,
    )


def _merge_deltas(deltas: list[CompletionDelta]) -> CompletionDelta:
    last = deltas[-1]
    entries: list[TokenLogprobs] = [entry for delta in deltas for entry in delta.logprobs or ()]
    return CompletionDelta(
        last.index,
        "".join(delta.text for delta in deltas),
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        tuple(entries) if any(delta.logprobs is not None for delta in deltas) else None,
        last.finish_reason,
        last.stop_reason,
    )
