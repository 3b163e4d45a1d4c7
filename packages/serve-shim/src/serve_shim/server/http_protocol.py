"""Owns what uvicorn's parser leaves open: bounds on headers, a deadline for them, error bodies.

uvicorn bounds headers with h11 only; httptools costs a fraction of h11 for each event of a stream,
so the bounds are here.
"""

from asyncio import Transport
from asyncio.events import TimerHandle
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serve_shim.errors import OverloadedError, RequestError
from serve_shim.server.error_response import error_body, error_headers, error_status
from serve_shim.server.errors import HeadersTooLargeError, MalformedHttpError
from serve_shim.server.json_response import to_json

MAX_CONNECTIONS = 1024
MAX_HEADERS = 100
HEADER_TIMEOUT_S = 15.0


def bounded_protocol(
    max_header_bytes: int,
    *,
    on_refusal: Callable[[Exception], None],
    header_timeout_s: float = HEADER_TIMEOUT_S,
    max_connections: int = MAX_CONNECTIONS,
) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn that reads at most so many bytes, so long, before a body.

    `on_refusal` hears of each error that is answered here, without the application.
    """
    limits = {
        "max_header_bytes": max_header_bytes,
        "on_refusal": staticmethod(on_refusal),
        "header_timeout_s": header_timeout_s,
        "max_connections": max_connections,
    }
    return type("BoundedProtocol", (_Protocol,), limits)


class _Protocol(HttpToolsProtocol):
    max_header_bytes: int
    header_timeout_s: float
    max_connections: int
    on_refusal: Callable[[Exception], None]

    _unfinished_bytes = 0
    _header_bytes = 0
    _is_in_headers = True
    _has_ended_message = False
    _is_too_large = False
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(OverloadedError(f"{self.max_connections} connections are open already."))
            return
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_ended_message = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_headers and not self._has_ended_message:
            self._count_unfinished(len(data))
        elif self._deadline is None and self.cycle and self.cycle.response_complete:
            # Bytes that begin no request (the rest of a body, empty lines) ended uvicorn's clock.
            self._start_clock()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unfinished_bytes = self._header_bytes = 0
        self._is_in_headers = True
        self._start_clock()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._stop_clock()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_ended_message = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP request, or one with too many headers, in the usual shape."""
        if self._is_too_large:
            limits = f"{self.max_header_bytes} bytes or {MAX_HEADERS} lines"
            self._refuse(HeadersTooLargeError(f"The headers exceed {limits}."))
        else:
            self._refuse(MalformedHttpError("This is not a valid HTTP request."))

    def _refuse(self, error: RequestError) -> None:
        self.on_refusal(error)
        if not self.cycle or self.cycle.response_complete:  # else it would break into an answer
            self.transport.write(_response(error))
        self.transport.close()

    def _count_unfinished(self, num_bytes: int) -> None:
        # The parser keeps an unfinished header to itself, so what it was fed is counted too; not
        # the read in which the message before ended, whose bytes are of both.
        self._unfinished_bytes += num_bytes
        if self._unfinished_bytes > self.max_header_bytes:
            self._is_too_large = True
            self.send_400_response("")

    def _count(self, num_bytes: int) -> None:
        self._header_bytes += num_bytes
        if self._header_bytes > self.max_header_bytes or len(self.headers) >= MAX_HEADERS:
            self._is_too_large = True
            # The parser stops at an exception and asks for the answer to a bad request.
            raise HeadersTooLargeError("too large")

    def _start_clock(self) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(self.header_timeout_s, self._close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self.transport.close()


def _response(error: RequestError) -> bytes:
    body = to_json(error_body(error)).encode("ascii")
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **error_headers(error),
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[error_status(error)] + lines.encode("ascii") + b"\r\n" + body
