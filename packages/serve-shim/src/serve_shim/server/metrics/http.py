"""Owns metrics of HTTP itself: requests and refusals, by route and never by what a client wrote."""

import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_shim.errors import OverloadedError, UnavailableError
from serve_shim.server.metrics.buckets import HTTP_S

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
    """Counts and times every request; `paths` are the routes without parameters."""

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
            self._families.note(self._handler(scope), method, status, seconds)

    def _handler(self, scope: Scope) -> str:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._paths:
            return path
        return "/v1/models/{model}" if path.startswith("/v1/models/") else "unknown"
