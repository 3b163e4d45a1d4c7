"""Owns request ids: the one a client sees, and the one the engine knows; never the same.

A client's `X-Request-Id` is echoed where it is harmless. It is not used as a key anywhere.
"""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_id(prefix: str) -> str:
    """An id nobody can guess, such as `cmpl-9f86d081884c7d659a2feaa0c55ad015`."""
    return f"{prefix}-{secrets.token_hex(16)}"


class RequestIdMiddleware:
    """Answers every request with `X-Request-Id`: the client's where harmless, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection; other types than http pass untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = client_id(scope) or new_id("req")
        scope["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def client_id(scope: Scope) -> str | None:
    """The client's own id if it sent a harmless one."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _HARMLESS.fullmatch(sent) else None
