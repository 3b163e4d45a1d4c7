"""Owns what is kept of each HTTP request: metrics, and a log line for those that went wrong.

Both name the route, never what a client wrote.
"""

import logging
import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_shim.errors import OverloadedError, UnavailableError
from serve_shim.server.metrics.buckets import HTTP_S

_log = logging.getLogger("serve_shim.access")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpFamilies:
    """Counters and times of HTTP requests, and refusals by reason."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._requests = Counter(
            "http_requests",
            "Requests answered; status 499 is a client that left before an answer.",
            ("handler", "method", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Arrival to the end of the response.",
            ("handler", "method"),
            registry=registry,
            buckets=HTTP_S,
        )
        self._refusals = Counter(
            f"{prefix}admission_rejections",
            "Requests answered with 503.",
            ("reason",),
            registry=registry,
        )

    def note(self, handler: str, method: str, status: int, seconds: float) -> None:
        """One answered request."""
        self._requests.labels(handler, method, str(status)).inc()
        self._seconds.labels(handler, method).observe(seconds)

    def note_error(self, error: Exception) -> None:
        """One error that was told to a client; counts it if it is a refusal."""
        if isinstance(error, OverloadedError | UnavailableError):
            self._refusals.labels(error.code or "unavailable").inc()


class HttpMetricsMiddleware:
    """Counts, times and logs requests; `paths` are the routes without parameters."""

    def __init__(self, app: ASGIApp, *, families: HttpFamilies, paths: Collection[str]) -> None:
        self._app = app
        self._families = families
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection; other types than http pass untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, watched_send)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = time.perf_counter() - started
            handler = self._handler(scope)
            self._families.note(handler, method, status, seconds)
            if status >= 400:
                words = f"{method} {handler} {status} {seconds:.3f}s"
                _log.log(_level(status), "%s %s", words, scope.get("request_id"))

    def _handler(self, scope: Scope) -> str:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._paths:
            return path
        return "/v1/models/{model}" if path.startswith("/v1/models/") else "unknown"


def _level(status: int) -> int:
    # A refusal (503) is expected while the server starts or is full.
    return logging.WARNING if status >= 500 and status != 503 else logging.DEBUG
