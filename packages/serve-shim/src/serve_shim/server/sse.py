"""Owns server-sent events: LF only, one `data:` line each, `[DONE]` last, also after an error.

The response starts with the first event, so that an error before it still gets its own status;
while a request waits in the queue, comments keep the connection alive.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_shim.server.error_response import error_body, log_failure
from serve_shim.server.in_flight import InFlight
from serve_shim.server.json_response import to_json

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class EventStreamResponse(Response):
    """Sends `events`, each already framed, until they end, fail, are cut off or nobody reads."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], in_flight: InFlight, *, keep_alive_s: float
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._in_flight = in_flight
        self._keep_alive_s = keep_alive_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI response; errors before the first event are raised, later ones are sent."""
        try:
            await self._in_flight.run(receive, self._send_all(send))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not self._started:
                raise
            log_failure(error, scope)
            await self._write(send, error_event(error) + DONE, more=False)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await self._write(send, await self._first(events, send))
            async for event in events:
                await self._write(send, event)
        await self._write(send, DONE, more=False)

    async def _first(self, events: AsyncGenerator[bytes, None], send: Send) -> bytes:
        first = asyncio.ensure_future(anext(events, b""))
        try:
            while not (await asyncio.wait((first,), timeout=self._keep_alive_s))[0]:
                await self._write(send, PING)
            return first.result()
        finally:
            if first.cancel():
                await asyncio.wait((first,))

    async def _write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})


def event(payload: str) -> bytes:
    """One event from one line of JSON."""
    return f"data: {payload}\n\n".encode("ascii")


def error_event(error: Exception) -> bytes:
    """The event that tells a reader that the stream failed."""
    return event(to_json(error_body(error)))
